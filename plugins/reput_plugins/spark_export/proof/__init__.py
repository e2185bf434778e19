"""Proof that a lake equals the log: each row against its record, each record against its row, and sums per transaction.

    log_pass       the log, range by range: verified, and summed up per block
    file_pass      the lake, file by file: each row compared with the record at its offset, and summed up per block
    offsets        the blocks whose sums differ: the offsets that are missing, doubled or superfluous, by name
    lake_check     the report
    watermarks     sums per transaction, in a table beside the rows

Ranges and files can be processed in any order and by any process, so Spark's workers can do it. Each file is read once,
whatever the order of its rows: files that were merged are not in the order of the log. Memory is that of a batch, plus
16 bytes for each MiB of the log. Importing this loads no pyspark.
"""
