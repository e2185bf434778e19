"""The store in a program: what `reput.open` returns, and the engine under it.

reput.open ─▶ Store, ReadOnlyStore      the public methods: they check arguments and tell errors
                   │
              StoreEngine, ReadOnlyEngine   writer, views, services; what broker, consumers and verbs build on
                   │
      ┌────────────┼──────────────┐
 MessageStore   StoreViews   ConsumeServices
   (store)    (ring, process)    (consume)
"""

from __future__ import annotations

__all__: list[str] = []
