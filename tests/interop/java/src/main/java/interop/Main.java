package interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;

/**
 * Opens a directory with RocketMQ's own store and answers questions about it.
 *
 * <p>Arguments: the directory, then settings of MessageStoreConfig as name=value; with services=true a broker's
 * services for delays and transactions work on it. One JSON object a line on standard
 * input is a question, one on standard output its answer; the first answer, unasked, says that the store is open. An
 * answer with "error" ends the process. The end of the questions does too, at once and without a shutdown.
 */
public final class Main {
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();

    public static void main(String[] arguments) {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        // Libraries may print; only answers reach the real standard output.
        System.setOut(System.err);
        try {
            converse(arguments, out);
        } catch (Throwable failure) {
            failure.printStackTrace();
            JsonObject json = new JsonObject();
            json.addProperty("error", failure.toString());
            out.println(GSON.toJson(json));
            System.err.flush();
            Runtime.getRuntime().halt(1);
        }
        // Threads of the store would keep the process for seconds.
        Runtime.getRuntime().halt(0);
    }

    private static void converse(String[] arguments, PrintStream out) throws Exception {
        Properties settings = new Properties();
        for (int at = 1; at < arguments.length; at++) {
            String[] setting = arguments[at].split("=", 2);
            settings.setProperty(setting[0], setting[1]);
        }
        boolean withServices = settings.remove("services") != null;
        OpenStore store =
            withServices ? OpenBroker.open(arguments[0], settings) : OpenStore.open(arguments[0], settings);
        out.println(GSON.toJson(new JsonObject()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            JsonObject question = GSON.fromJson(line, JsonObject.class);
            out.println(GSON.toJson(store.answer(question)));
        }
    }

    private Main() {
    }
}
