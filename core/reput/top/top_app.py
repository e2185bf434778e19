"""TopApp: the screen of `reput top`. A thread reads once a second; the screen never waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.markup import escape
from textual.widgets import DataTable, Footer, Sparkline, Static

from reput.errors import ReputError
from reput.top.top_tables import (
    BROKERS,
    DISPATCHERS,
    GROUPS,
    TOPICS,
    Cells,
    Table,
    broker_rows,
    dispatcher_rows,
    group_rows,
    head,
    topic_rows,
)
from reput.watched.overview import Overview, WatchedSource
from reput.watched.rates import RateMeter

__all__ = ["TopApp"]

INTERVAL_S = 1.0
# A minute and a half of rates.
SPARKS_MAX = 90


class TopApp(App[None]):
    """Shows what a source says, until q."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; }
    #head.failed { color: $error; }
    #puts { height: 2; margin: 0 1; }
    DataTable { height: auto; max-height: 12; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("space", "freeze", "Freeze"),
        Binding("tab", "focus_next", "Next table"),
    ]

    def __init__(self, source: WatchedSource, is_store: bool, interval: float = INTERVAL_S) -> None:
        """Show *source*: a store, or brokers."""
        super().__init__()
        self.source = source
        self.tables = (DISPATCHERS, GROUPS, TOPICS) if is_store else (BROKERS, GROUPS)
        self.interval = interval
        self.meter = RateMeter()
        self.rates: deque[float] = deque([0.0], maxlen=SPARKS_MAX)
        self.frozen = False

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Static("…", id="head", markup=False)
        yield Sparkline(id="puts")
        with VerticalScroll():
            for table in self.tables:
                yield DataTable(id=table.name, cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Make the columns, and begin to read."""
        for table in self.tables:
            widget = self.table(table)
            for name, width in table.columns:
                widget.add_column(name, width=width)
        self.read_now()
        self.set_interval(self.interval, self.read_now)

    def table(self, table: Table) -> DataTable[str]:
        """Return the widget of a table."""
        found: DataTable[str] = self.query_one(f"#{table.name}", DataTable)
        return found

    def action_freeze(self) -> None:
        """Stop or continue to read, so that a row can be looked at."""
        self.frozen = not self.frozen
        self.sub_title = "frozen" if self.frozen else ""

    def read_now(self) -> None:
        """Begin a reading, unless the last one is not done yet."""
        if not self.frozen and not any(worker.is_running for worker in self.workers):
            self.run_worker(self.read, thread=True, exit_on_error=True)

    def read(self) -> None:
        """Read the source, in a thread, and show what it says."""
        try:
            overview = self.source.read()
        except (ReputError, OSError) as error:
            advice = error.advice if isinstance(error, ReputError) else ""
            self.call_from_thread(self.if_shown, partial(self.tell, f"{error}\n{advice}"))
        else:
            self.call_from_thread(self.if_shown, partial(self.show, overview))

    def if_shown(self, change: Callable[[], None]) -> None:
        """Change the screen, unless the program is ending and has removed it."""
        if self.query("#head"):
            change()

    def tell(self, failure: str) -> None:
        """Show why there is no reading; the last one stays below."""
        widget = self.query_one("#head", Static)
        widget.add_class("failed")
        widget.update(failure)

    def show(self, overview: Overview) -> None:
        """Show one reading."""
        rates = self.meter.rates(overview)
        widget = self.query_one("#head", Static)
        widget.remove_class("failed")
        widget.update(head(overview, rates))
        self.rates.append(rates.put or 0.0)
        self.query_one("#puts", Sparkline).data = list(self.rates)
        if overview.figures is not None:
            fill(self.table(DISPATCHERS), dispatcher_rows(overview.figures.status.dispatchers))
            fill(self.table(TOPICS), topic_rows(overview, rates))
        else:
            fill(self.table(BROKERS), broker_rows(overview.brokers))
        fill(self.table(GROUPS), group_rows(overview.lags, rates, overview.timestamp))


def fill(table: DataTable[str], rows: list[Cells]) -> None:
    """Show *rows*; the cursor and the place stay where they are."""
    # A name or an address in brackets is no markup.
    texts = [[escape(cell) for cell in row] for row in rows]
    for number, row in enumerate(texts[: table.row_count]):
        for column, cell in enumerate(row):
            if table.get_cell_at((number, column)) != cell:  # type: ignore[arg-type]
                table.update_cell_at((number, column), cell)  # type: ignore[arg-type]
    for row in texts[table.row_count :]:
        table.add_row(*row)
    while table.row_count > len(rows):
        table.remove_row(table.ordered_rows[-1].key)
