"""DispatcherContract: the contract of a dispatcher as pytest tests. Needs pytest, and reput beside the plugin.

    from reput_hooks.testing import DispatcherContract

    class TestContract(DispatcherContract):
        dispatcher = "topic_count"

Each clause is a test: order, gaps, at-least-once, a crash at every call, truncation, retention, and so on. The tests
run the plugin in pytest's own process, where you can debug it; only crashes run in a forked child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest

from reput_hooks.sample import Sample

__all__ = ["DispatcherContract", "Sample"]

ENTRY_POINT_GROUP = "reput.contract"


class ContractHost(Protocol):
    """Runs dispatchers, and can try one."""

    def promises(self) -> Mapping[str, str]:
        """Return the name of each clause, and its promise."""

    def try_clause(
        self,
        clause: str,
        *,
        dispatcher: str,
        options: Mapping[str, object],
        samples: Sequence[Sample],
        directory: Path,
    ) -> str | None:
        """Try one clause; return None if the promise is kept, or why the clause does not apply."""


@cache
def contract_host() -> ContractHost:
    """Return the installed host."""
    found = list(entry_points(group=ENTRY_POINT_GROUP))
    if not found:
        raise LookupError("no host for dispatchers is installed: pip install reput")
    host: ContractHost = found[0].load()
    return host


class DispatcherContract:
    """Base of a test class that holds one installed dispatcher to its contract.

    Attributes:
        dispatcher: name of the entry point.
        options: of the dispatcher, as in ``[dispatchers.NAME]``.
        samples: messages for the tests; by default orders and payments in JSON, in three topics.
    """

    dispatcher: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    samples: ClassVar[Sequence[Sample]] = ()

    @pytest.mark.parametrize("clause", list(contract_host().promises()))
    def test_contract(self, clause: str, tmp_path: Path) -> None:
        """The dispatcher keeps its promise."""
        reason = contract_host().try_clause(
            clause,
            dispatcher=self.dispatcher,
            options=self.options,
            samples=self.samples,
            directory=tmp_path,
        )
        if reason is not None:
            pytest.skip(reason)
