import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A rule of Spark's optimizer: a scan of the format reput reads only the columns that the query uses.
 *
 * Spark's own pruning ends at the Project above a Python source, because such a source has no interface for it. The
 * rule replaces the scan by one of the columns that this Project and the Filter below it name. Filters that the source
 * has accepted are pushed down again; if it does not accept them all, the scan stays as it is.
 *
 * column_pruning.py compiles this file with the compiler that Spark brings along for its generated code (Janino: no
 * generics, no lambdas, hence the raw types and casts).
 */
public class ColumnPruning extends Rule {
    private static final String FORMAT = "reput";

    public TreeNode apply(TreeNode plan) {
        return pruned((LogicalPlan) plan);
    }

    private LogicalPlan pruned(LogicalPlan plan) {
        if (plan instanceof Project) {
            LogicalPlan child = ((Project) plan).child();
            AttributeSet used = plan.references();
            LogicalPlan scan = child;
            if (child instanceof Filter) {
                used = used.$plus$plus(child.references());
                scan = ((Filter) child).child();
            }
            if (scan instanceof DataSourceV2ScanRelation) {
                DataSourceV2ScanRelation narrow = narrowed((DataSourceV2ScanRelation) scan, used);
                if (narrow == scan) {
                    return plan;
                }
                LogicalPlan below = narrow;
                if (child instanceof Filter) {
                    below = new Filter(((Filter) child).condition(), narrow);
                }
                return new Project(((Project) plan).projectList(), below);
            }
        }
        return (LogicalPlan) plan.mapChildren(new scala.runtime.AbstractFunction1() {
            public Object apply(Object child) {
                return pruned((LogicalPlan) child);
            }
        });
    }

    private DataSourceV2ScanRelation narrowed(DataSourceV2ScanRelation relation, AttributeSet used) {
        Scan scan = relation.scan();
        if (!(scan instanceof PythonScan) || !FORMAT.equalsIgnoreCase((String) field(scan, "shortName"))) {
            return relation;
        }
        org.apache.spark.sql.sources.Filter[] accepted =
            (org.apache.spark.sql.sources.Filter[]) field(scan, "supportedFilters");
        // Spark translates a filter for Python only if the scan has its columns.
        Set filtered = new HashSet();
        for (int i = 0; i < accepted.length; i++) {
            filtered.addAll(java.util.Arrays.asList(accepted[i].references()));
        }
        List output = new ArrayList();
        Set names = new HashSet();
        AttributeReference cheapest = null;
        for (Object each : CollectionConverters.asJava(relation.output())) {
            AttributeReference attribute = (AttributeReference) each;
            if (used.contains(attribute) || filtered.contains(attribute.name())) {
                output.add(attribute);
                names.add(attribute.name());
            }
            // A count needs rows, and so one column: a number, which costs least.
            if (cheapest == null && "int".equals(attribute.dataType().simpleString())) {
                cheapest = attribute;
            }
        }
        if (output.isEmpty()) {
            if (cheapest == null) {
                return relation;
            }
            output.add(cheapest);
            names.add(cheapest.name());
        }
        if (output.size() == relation.output().size()) {
            return relation;
        }
        List fields = new ArrayList();
        StructField[] known = scan.readSchema().fields();
        for (int i = 0; i < known.length; i++) {
            if (names.contains(known[i].name())) {
                fields.add(known[i]);
            }
        }
        StructType schema = new StructType((StructField[]) fields.toArray(new StructField[0]));
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(FORMAT);
        PythonScanBuilder builder = new PythonScanBuilder(
            source, FORMAT, schema, (CaseInsensitiveStringMap) field(scan, "options"));
        if (accepted.length > 0 && builder.pushFilters(accepted).length > 0) {
            return relation;
        }
        return replaced(relation, builder.build(), output);
    }

    /** Return the relation with another scan; its other fields differ between versions of Spark. */
    private static DataSourceV2ScanRelation replaced(DataSourceV2ScanRelation relation, Scan scan, List output) {
        Object[] arguments = new Object[relation.productArity()];
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = relation.productElement(i);
        }
        arguments[1] = scan;
        arguments[2] = CollectionConverters.asScala(output).toList();
        try {
            Constructor constructor = DataSourceV2ScanRelation.class.getConstructors()[0];
            return (DataSourceV2ScanRelation) constructor.newInstance(arguments);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException("a scan of this Spark cannot be replaced", error);
        }
    }

    private static Object field(Object holder, String name) {
        try {
            Field field = holder.getClass().getDeclaredField(name);
            field.setAccessible(true);
            return field.get(holder);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException("a scan of this Spark has no such field: name=" + name, error);
        }
    }
}
