"""`reput top`: what a person sees in a terminal of 80 columns, driven by Textual's pilot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.widgets import DataTable, Static

import reput
from command_line import run_reput
from delivering import LIMIT_S
from reput.cli.target.watched_target import watched_source
from reput.client.administration import BrokerRow
from reput.errors import BrokerError
from reput.store.state.lease_row import LeaseRow
from reput.top.top_app import TopApp
from reput.top.top_tables import BROKERS, DISPATCHERS, GROUPS, TOPICS, Table, head
from reput.watched.overview import Overview, WatchedSource
from reput.watched.rates import Rates
from serving import served

SMALL_LOG = {"mapped_file_size_commit_log": 1 << 16}


async def until(condition: Callable[[], bool], pause: Callable[[], Awaitable[None]]) -> None:
    """Let the screen work until *condition* holds."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await pause()
            await asyncio.sleep(0.01)


def head_of(app: TopApp) -> str:
    """Return the text above the tables."""
    return str(app.query_one("#head", Static).render())


def rows_of(app: TopApp, name: str) -> list[list[str]]:
    """Return the cells of a table."""
    table = app.query_one(f"#{name}", DataTable)
    return [table.get_row_at(number) for number in range(table.row_count)]


def run(
    source: WatchedSource, is_store: bool, watch: Callable[[TopApp, Callable[[], Awaitable[None]]], Awaitable[None]]
) -> None:
    """Show *source* in 80 columns, and let *watch* look at it."""

    async def shown() -> None:
        app = TopApp(source, is_store, interval=0.05)
        async with app.run_test(size=(80, 24)) as pilot:
            await watch(app, pilot.pause)
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(shown())


@pytest.mark.processes
def test_a_store_that_is_open_shows_rates_dispatchers_groups_and_topics(tmp_path):
    """Those of the program that has it open; a message that is put shows after the next reading."""
    path = tmp_path / "store"

    async def watch(app, pause):
        await until(lambda: len(rows_of(app, "topics")) == 1, pause)
        assert "RUNNING" in head_of(app)
        assert [row[:2] for row in rows_of(app, "dispatchers")] == [["consume_queue", "RUNNING"], ["index", "RUNNING"]]
        assert rows_of(app, "topics")[0][:2] == ["orders", "3"]
        assert [row[:3] for row in rows_of(app, "groups")] == [["billing", "orders", "2"]]
        await asyncio.to_thread(store.put, reput.Message("refunds", b"x"))
        await until(lambda: len(rows_of(app, "topics")) == 2, pause)

    with reput.open(path, **SMALL_LOG) as store:
        end = store.put_batch([reput.Message("orders", b"x")] * 3)[-1].next_commit_log_offset
        store.wait_for("consume_queue", end, LIMIT_S)
        with store.consumer("billing", "orders") as consumer:
            consumer.ack(consumer.receive(LIMIT_S))
            consumer.commit()
            with watched_source(path, None, None) as source:
                run(source, True, watch)


@pytest.mark.processes
def test_a_node_of_a_lease_shows_its_role(tmp_path):
    """Beside the state of the writer, with the size of the in-sync set; a store without a lease shows none."""
    path = tmp_path / "store"
    with reput.open(path, dispatchers=[], **SMALL_LOG) as store, watched_source(path, None, None) as source:
        assert "epoch 1   log" in head(source.read(), Rates())
        store._engine.writer.lease_row = lambda: LeaseRow("l", "m", "master", 7, "m", "h:1", ("m", "n"), 8.5)
        assert "epoch 1   master, 2 in sync   log" in head(source.read(), Rates())


@pytest.mark.slow
def test_a_store_that_nobody_has_open_shows_what_is_on_disk(golden_read_only):
    """Nothing of it changes."""

    async def watch(app, pause):
        await until(lambda: bool(rows_of(app, "dispatchers")), pause)
        assert "STOPPED" in head_of(app)
        assert {row[1] for row in rows_of(app, "dispatchers")} == {"STOPPED"}
        assert rows_of(app, "topics") == []

    with watched_source(golden_read_only("basic-4.9") / "store", None, None) as source:
        run(source, True, watch)


@pytest.mark.slow
def test_brokers_behind_an_address_are_shown_with_the_lag_of_groups(tmp_path):
    """Through a name server, or the socket of a broker."""

    async def watch(app, pause):
        await until(lambda: bool(rows_of(app, "brokers")), pause)
        assert [row[:2] for row in rows_of(app, "brokers")] == [["broker-a 0", address]]
        assert head_of(app).startswith(f"{address}   1 brokers\n")

    with served(tmp_path / "store") as broker:
        address = "{}:{}".format(*broker.address)
        with watched_source(Path(address), None, None) as source:
            run(source, False, watch)


def test_a_source_that_fails_is_told_and_asked_again():
    """A broker that is started again comes back by itself."""

    class Failing:
        calls = 0

        def read(self) -> Overview:
            self.calls += 1
            raise BrokerError(f"nobody answers: call={self.calls}", "Start it.")

    async def watch(app, pause):
        await until(lambda: source.calls > 2 and "nobody answers: call=" in head_of(app), pause)
        assert "Start it." in head_of(app)

    source = Failing()
    run(source, True, watch)


@pytest.mark.slow
def test_a_frozen_screen_reads_nothing_until_it_is_released():
    """Space freezes it, so that a person can read a row."""

    class Counting:
        calls = 0

        def read(self) -> Overview:
            self.calls += 1
            raise BrokerError("nobody answers")

    source = Counting()

    async def shown() -> None:
        app = TopApp(source, True, interval=0.02)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("space")
            await until(lambda: not any(worker.is_running for worker in app.workers), pilot.pause)
            calls = source.calls
            app.read_now()
            assert source.calls == calls
            await pilot.press("space")
            await until(lambda: source.calls > calls, pilot.pause)

    asyncio.run(shown())


def test_an_address_in_brackets_is_shown_as_it_is():
    """That of a broker behind IPv6, and a name that some broker has given to itself, are not the screen's markup."""

    class Source:
        def read(self) -> Overview:
            broker = BrokerRow("c", "b[/x]", 0, "[fe80::1]:10911", {}, None)
            return Overview("b", 0.0, 0, None, [broker], [], None)

    async def watch(app, pause):
        table = app.query_one("#brokers", DataTable)
        await until(lambda: table.row_count == 1, pause)
        await pause()
        line = "".join(segment.text for segment in table.render_line(1))
        assert "b[/x] 0" in line
        assert "[fe80::1]:10911" in line

    run(Source(), False, watch)


@pytest.mark.parametrize("table", [DISPATCHERS, GROUPS, TOPICS, BROKERS], ids=lambda table: table.name)
def test_every_table_fits_into_80_columns(table: Table):
    """A cell has a character of room on both sides; two remain for the scroll bar."""
    assert sum(width + 2 for _, width in table.columns) <= 78


def test_without_a_terminal_it_names_the_verb_for_scripts(tmp_path):
    """Exit code 2."""
    ended = run_reput("top", tmp_path)
    assert ended.code == 2
    assert "reput status TARGET --format json" in ended.stderr
