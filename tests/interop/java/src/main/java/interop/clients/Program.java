package interop.clients;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Runs scenarios against one broker.
 *
 * <p>Arguments: the address of its name server, how many scenarios run at a time, and their names; a name may be
 * followed by = and an argument. Standard output has one JSON object a scenario: its name, the lines that it said, and
 * "error" if it threw.
 */
public final class Program {
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        // Libraries may print; only outcomes reach the real standard output.
        System.setOut(System.err);
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        SendScenarios.addTo(scenarios);
        ConsumeScenarios.addTo(scenarios);
        PullScenarios.addTo(scenarios);
        RetryScenarios.addTo(scenarios);
        TransactionScenarios.addTo(scenarios);
        QueryScenarios.addTo(scenarios);
        GroupScenarios.addTo(scenarios);
        ReplyScenarios.addTo(scenarios);
        StreamScenarios.addTo(scenarios, out);
        ExecutorService pool = Executors.newFixedThreadPool(Integer.parseInt(arguments[1]));
        List<Future<?>> running = new ArrayList<>();
        for (String argument : Arrays.asList(arguments).subList(2, arguments.length)) {
            String name = argument.split("=", 2)[0];
            if (!scenarios.containsKey(name)) {
                throw new IllegalArgumentException("no such scenario: " + name);
            }
            running.add(pool.submit(() -> out.println(GSON.toJson(outcome(arguments[0], argument, scenarios.get(name))))));
        }
        for (Future<?> one : running) {
            one.get();
        }
        System.err.flush();
        // Threads of clients would keep the process.
        Runtime.getRuntime().halt(0);
    }

    private static JsonObject outcome(String nameServer, String argument, Scenario scenario) {
        JsonObject json = new JsonObject();
        json.addProperty("scenario", argument.split("=", 2)[0]);
        long begin = System.nanoTime();
        JsonArray lines = new JsonArray();
        try (Session session = new Session(nameServer, argument)) {
            try {
                scenario.run(session);
            } finally {
                session.lines().forEach(lines::add);
            }
        } catch (Throwable failure) {
            StringWriter trace = new StringWriter();
            failure.printStackTrace(new PrintWriter(trace));
            json.addProperty("error", trace.toString());
        }
        json.add("lines", lines);
        json.addProperty("ms", (System.nanoTime() - begin) / 1_000_000);
        return json;
    }

    private Program() {
    }
}
