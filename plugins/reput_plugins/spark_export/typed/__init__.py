"""typed: tables of a topic's messages with a column per field, beside the table of the whole log.

table_specs    the file of tables: topic, format, schema, columns
field_schemas  schema files and their Arrow types
decoding       a decoder per format: bodies in, columns and refused bodies out
evolution      what a changed schema changes in the table
table_files    the files that a worker writes for one range
typed_lake     the Delta table and its dead letters, with the exactness of the log's own table
typed_job      exports: one scan of the log feeds all tables
"""
