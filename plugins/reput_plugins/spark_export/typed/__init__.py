"""typed: tables of a topic's messages with a column per field, beside the table of the whole log.

table_specs    the file of tables: topic, format, schema, columns
field_schemas  schema files and their Arrow types
decoding       a decoder per format: bodies in, columns and refused bodies out
evolution      how the table follows a changed schema
table_files    the files that a worker writes for one range
typed_lake     the table and its dead letters, each record exactly once
keyed_lake     the table that keeps the newest row of each key
typed_job      exports: one scan of the log feeds all tables
typed_target   the tables of the dispatcher
"""
