"""Column pruning: queries of a session read only the columns that they use.

Spark has no interface for this in Python sources, but a session can add rules in Java to its optimizer. The rule
`ColumnPruning.java` is compiled by the compiler that is part of Spark. If this program has no JVM (Spark Connect),
users name the columns with the option ``columns`` instead.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["prune_columns"]

SOURCE = Path(__file__).with_name("ColumnPruning.java")
RULE = "ColumnPruning"

logger = logging.getLogger(__name__)


def prune_columns(spark: SparkSession) -> bool:
    """Let queries of *spark* read only the columns that they use; return whether this Spark can do it."""
    # A session of Spark Connect has no such attribute.
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return False
    methods = spark._jsparkSession.experimental()
    present = jvm.scala.jdk.javaapi.CollectionConverters.asJava(methods.extraOptimizations())
    if any(rule.getClass().getName() == RULE for rule in present):
        return True
    try:
        rule = compiled_rule(spark)
    except Exception as error:
        # Without the rule, queries return the same rows.
        logger.warning(
            "queries of this Spark read all columns; name the wanted ones in the option columns: error=%s",
            str(error).strip().partition("\n")[0],
        )
        return False
    rules = jvm.java.util.ArrayList(present)
    rules.add(rule)
    getattr(methods, "extraOptimizations_$eq")(jvm.scala.jdk.javaapi.CollectionConverters.asScala(rules).toList())
    return True


def compiled_rule(spark: SparkSession) -> Any:
    """Return a new instance of the rule."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE.read_text("utf-8"))
    made = compiler.getClassLoader().loadClass(RULE)
    constructor = made.getDeclaredConstructor(gateway.new_array(jvm.java.lang.Class, 0))
    return constructor.newInstance(gateway.new_array(jvm.java.lang.Object, 0))
