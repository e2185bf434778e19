"""Proof that a lake equals the log: compares rows with records and records with rows, and checks sums per transaction.

    log_pass       verifies the log, range by range, and sums it up per block
    file_pass      compares each row, file by file, with the record at its offset, and sums rows up per block
    offsets        lists the missing, doubled and superfluous offsets in blocks whose sums differ
    lake_check     the report
    watermarks     sums per transaction, in a table beside the rows

Ranges and files can be processed in any order and by any process, so Spark's workers can do it. Each file is read once,
in any order of its rows, because merged files are not in the order of the log. The check needs memory for one batch,
and 16 bytes for each MiB of the log. Importing this loads no pyspark.
"""
