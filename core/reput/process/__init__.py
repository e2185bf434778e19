"""The process group: the dispatchers of a store, each in its own supervised process.

    owner (the writer's program)
      ├─ ProcessGroup ── exec ──▶ supervisor ── fork ──▶ dispatcher: one plugin, one DispatcherLoop
      │      │                        │                        ▲
      │      └─ control channel ──────┤                        │ frames
      └─ HoldingPublisher ────────────┼────── ring ────────────┘
                                      └─ exec ──▶ describe: imports one plugin, reports what it declares

Inline mode runs the same loops on a thread of the owner (`reput.process.owner.inline_group`).

The subpackages, each of which imports only from those above it in this list:

    system      Linux facilities: fresh processes, parent-death signals, poll, time slices
    logs        one pipe per dispatcher, one merged log
    views       a view's folders, the shadow of a rebuild, dead letters, gaps
    frames      the data path from writer to dispatchers
    plugin      installed plugins, their declarations, loading
    group       what identifies a group: store and settings, lock, place
    dispatcher  the loop, its states, the plugin's host context, the process
    control     the control channel and socket, and the status they carry
    supervisor  starts, watches, restarts and stops dispatchers; serves requests; live rebuilds
    owner       the program's side: groups, inline mode, offline rebuilds, status of a stopped store
    contract    `reput plugin test`

States of a dispatcher (`reput.process.dispatcher.states`; every step is checked)::

                        ┌──────────────────────────────┐
                        ▼                              │ restart
    STOPPED ──▶ STARTING ──▶ RUNNING ──▶ STOPPING ──▶ STOPPED
                 │  ▲  │        │            └──────▶ PAUSED ──▶ STARTING
                 │  │  └──┬─────┘
                 │  │     ▼ died
                 │  └── BACKOFF ──▶ FATAL (died too often, or refused)      left by hand only
                 └────▶ BROKEN (cannot be imported or described)            left by hand only
"""
