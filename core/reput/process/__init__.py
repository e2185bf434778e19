"""Who runs: the dispatchers of a store, each in a process of its own, supervised.

    owner (the writer's program)
      ├─ ProcessGroup ── exec ──▶ supervisor ── fork ──▶ dispatcher: one plugin, one DispatcherLoop
      │      │                        │                        ▲
      │      └─ control channel ──────┤                        │ frames
      └─ HoldingPublisher ────────────┼────── ring ────────────┘
                                      └─ exec ──▶ describe: imports one plugin, says what it declares

Inline mode runs the same loops on a thread of the owner (`reput.process.inline`).

States of a dispatcher (`reput.process.states`; every step is checked)::

                        ┌──────────────────────────────┐
                        ▼                              │ restart
    STOPPED ──▶ STARTING ──▶ RUNNING ──▶ STOPPING ──▶ STOPPED
                 │  ▲  │        │            └──────▶ PAUSED ──▶ STARTING
                 │  │  └──┬─────┘
                 │  │     ▼ died
                 │  └── BACKOFF ──▶ FATAL (died too often, or refused)      left by hand only
                 └────▶ BROKEN (cannot be imported or described)            left by hand only
"""
