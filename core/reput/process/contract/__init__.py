"""The contract suite for installed dispatchers, run by `reput plugin test` and pytest.

reput plugin test, reput_hooks.testing
  └─ host          finds the dispatcher, runs a clause
          └─ clauses    one promise each
             ├─ trial           a view, built step by step by the host's own loop
             │  ├─ sample_store the log that it is built from, and logs with a different history
             │  └─ watched      wraps the plugin: counts its calls, and can crash before any of them
             ├─ child           a forked process that may crash
             └─ view_content    the content of a view, for comparison
"""
