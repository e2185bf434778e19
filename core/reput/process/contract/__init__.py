"""The contract of a dispatcher, tried against one that is installed: what `reput plugin test` and pytest run.

reput plugin test, reput_hooks.testing
  └─ host          finds the dispatcher, runs a clause
     └─ clauses    one promise each
        ├─ trial           a view, brought up step by step by the host's own loop
        │  ├─ sample_store the log that it is brought up to, and logs of another history
        │  └─ watched      the plugin, each call of which is counted and can be the last
        ├─ child           a process that may die
        └─ view_content    what a view holds, to be compared
"""
