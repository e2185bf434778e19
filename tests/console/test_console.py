"""`reput console`: what a person sees and does, without a browser's screen."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import reput
from command_line import REPUT, run_reput
from consoles import TOKEN, Browser, browser_of, store_browser
from delivering import LIMIT_S, wait_until
from process_tree import descendants
from reput.cli.target.console_target import shown_target
from reput.console.body_search import search_bodies
from reput.errors import ConfigError, RequestRefused
from reput.store.state.lease_row import LeaseRow
from serving import served
from source_tree import ROOT

SMALL_LOG = {"mapped_file_size_commit_log": 1 << 16}
MESSAGE_LINK = re.compile(r'href="(/message\?id=[0-9A-F]+)"')


def words(page: str) -> str:
    """Return the text of a page in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.fixture
def store(tmp_path) -> Iterator[reput.Store]:
    """An open store with three orders, one of them acknowledged by the group billing."""
    with reput.open(tmp_path / "store", **SMALL_LOG) as store:
        bodies = [b'{"order": 1, "paid": true}', b"two <script>", b"\x00\xff\x01"]
        messages = [reput.Message("orders", body, keys=[f"k{at}"], tags="paid") for at, body in enumerate(bodies)]
        end = store.put_batch(messages)[-1].next_commit_log_offset
        store.wait_for("consume_queue", end, LIMIT_S)
        store.wait_for("index", end, LIMIT_S)
        with store.consumer("billing", "orders") as consumer:
            consumer.ack(consumer.receive(LIMIT_S))
            consumer.commit()
        store.flush()
        # The offsets reach their file as they do every few seconds.
        store._engine.services.keep()
        yield store


@pytest.fixture
def browser(store) -> Iterator[Browser]:
    """A browser on a console beside the program that has the store open."""
    with store_browser(store.directory, audit=store.directory / "audit.jsonl") as browser:
        yield browser


@pytest.mark.processes
def test_the_overview_shows_the_role_of_a_node_of_a_lease(store, browser):
    """With epoch and the size of the in-sync set; a store without a lease shows none."""
    assert "Lease" not in words(browser.text("/"))
    store._engine.writer.lease_row = lambda: LeaseRow("orders", "m", "follower", 7, "n", "h:1", ("m", "n"), None)
    wait_until(lambda: "Lease orders follower, epoch 7, 2 in sync" in words(browser.text("/")))


@pytest.mark.processes
def test_every_page_shows_what_the_store_has(browser):
    """From the overview to one message and its life, and nothing that a message holds becomes a part of the page."""
    overview = words(browser.text("/"))
    assert "Writer RUNNING" in overview
    assert "consume_queue RUNNING" in overview
    assert "billing orders 2" in overview
    assert "orders" in words(browser.text("/topics"))
    assert "billing 2" in words(browser.text("/topics/orders"))
    assert "billing orders 2" in words(browser.text("/groups"))
    assert "orders 0 1 3 2" in words(browser.text("/groups/billing"))
    assert "No broker serves the store" in browser.text("/groups/billing")
    listed = browser.text("/messages?topic=orders")
    assert "<script>" not in listed.replace('<script src="/static/console.js" defer></script>', "")
    # Newest first.
    third, second, first = MESSAGE_LINK.findall(listed)
    life = words(browser.text(first))
    assert '"paid": true' in life
    assert "in index readable" in life or "in index durably" in life
    assert "group billing acknowledged: the group is at 1" in life
    assert "group billing not yet: not acknowledged; 0 messages before it" in words(browser.text(second))
    assert "00000000 00 ff 01" in words(browser.text(third))
    log = words(browser.text("/log"))
    assert "Epochs: the histories of the log" in log
    assert "the log ends in it" in log
    assert "Counters of the plugin left_alone" in words(browser.text("/dispatchers/consume_queue"))


@pytest.mark.processes
def test_a_message_is_found_by_key_position_time_and_id(browser, store):
    """Each way leads to the same page."""
    (link,) = MESSAGE_LINK.findall(browser.text("/messages?topic=orders&key=k1"))
    record = store.get("orders", 0, 1, 1)[0]
    assert record.message_id in link
    at = record.store_timestamp
    for query in ("queue_id=0&queue_offset=1", f"time={at}"):
        assert link in browser.text(f"/messages?topic=orders&{query}")
    assert "two" in words(browser.text(f"/messages?id={record.message_id}"))
    assert MESSAGE_LINK.findall(browser.text(f"/messages?topic=orders&time={at + 3_600_000}")) == []


@pytest.mark.processes
def test_a_message_is_found_by_the_text_of_its_body(browser, store):
    """In whatever case, in JSON also behind escapes, newest first, and in parts if a topic is long."""
    bodies = [b'{"city": "Z\\u00fcrich"}', b"another ZURICH", b"something", b"nothing"]
    store.administration.create_topic("cities", 2)
    for at, body in enumerate(bodies):
        result = store.put(reput.Message("cities", body, queue_id=at % 2))
    store.wait_for("consume_queue", result.next_commit_log_offset, LIMIT_S)
    assert MESSAGE_LINK.findall(browser.text("/messages?topic=cities&text=ZÜRICH"))[1:] == []
    page = browser.text("/messages?topic=cities&text=zurich")
    assert "1 of 4 messages have this text" in page
    assert "another ZURICH" in page
    assert "0 of 4 messages have this text" in browser.text("/messages?topic=cities&text=paris")
    found = search_bodies(store, "cities", "n", monotonic=iter([0.0, 9.0]).__next__)
    assert [record.body for record in found.records] == [b"nothing"]
    assert found.onward is not None
    rest = search_bodies(store, "cities", "another", found.onward)
    assert ([record.body for record in rest.records], rest.onward) == ([b"another ZURICH"], None)


@pytest.mark.processes
def test_a_message_that_was_sent_back_shows_its_copies(browser, store):
    """Its redeliveries and its dead letter, each with a link."""
    with store.consumer("billing", "orders") as consumer:
        record = consumer.receive(LIMIT_S)
        consumer.retry(record, -1)
    store.wait_for("index", store.appended, LIMIT_S)
    page = browser.text(f"/message?id={record.message_id}")
    assert "dead letter of billing" in words(page)
    copy = next(link for link in MESSAGE_LINK.findall(page) if record.message_id not in link)
    assert f"redelivered 1 times before {record.message_id}" in words(browser.text(copy))


@pytest.mark.processes
def test_a_dispatcher_is_paused_resumed_and_rebuilt_after_a_confirmation(browser, store):
    """Each action says first what it does, then how it went, and stands in the audit log."""
    state = lambda: {row.name: row.state for row in store.status().dispatchers}["index"]  # noqa: E731
    assert "Its view falls behind" in browser.text("/dispatchers/index/pause")
    assert state() == "RUNNING"
    assert browser.outcome(browser.send("/dispatchers/index/pause")) == "done: paused"
    wait_until(lambda: state() == "PAUSED")
    assert browser.outcome(browser.send("/dispatchers/index/resume")) == "done: resumed"
    wait_until(lambda: state() == "RUNNING")
    assert "index: " in browser.outcome(browser.send("/dispatchers/index/rebuild"))
    assert browser.outcome(browser.send("/dispatchers/index/replay")) == "done: there were none"
    lines = [json.loads(line) for line in (store.directory / "audit.jsonl").read_text().splitlines()]
    assert [line["action"] for line in lines[:2]] == ["pause dispatcher=index"] * 2
    assert [line["outcome"] for line in lines[:2]] == ["begun", "done: paused"]
    assert "pause dispatcher=index" in words(browser.text("/audit"))


@pytest.mark.processes
def test_an_action_that_cannot_be_done_says_why(browser, store):
    """A name that is wrong; a store that was closed between form and answer."""
    assert "the store has no such dispatcher" in browser.text("/dispatchers/nothing", 400)
    assert "there is no such action" in browser.text("/dispatchers/index/explode", 404)
    token = TOKEN.search(browser.text("/dispatchers/index/resume"))
    store.close()
    answer = browser.client.post("/dispatchers/index/resume", data={"csrf": token[1]})
    assert answer.status_code == 503
    assert "no program has this store open" in answer.text


@pytest.mark.processes
def test_open_pages_share_one_reading_a_second(browser, store):
    """As server-sent events: the numbers by name, and a point for the charts."""
    reads = []
    target = browser.console.target
    read = target.read
    target.read = lambda: reads.append(1) or read()
    browser.console.feed.interval = 0.02
    event = browser.console.feed.read
    first = json.loads(browser.client.portal.call(event).partition(b"data: ")[2])
    store.put(reput.Message("orders", b"x"))
    second = json.loads(browser.client.portal.call(event).partition(b"data: ")[2])
    assert first["cells"]["writer.state"] == "RUNNING"
    assert first["cells"]["d.index.state"] == "RUNNING"
    assert first["point"][1] == 0.0
    assert second["point"][1] > 0.0
    assert len(reads) == 2


@pytest.mark.slow
def test_a_store_that_nobody_has_open_is_only_read(golden_read_only):
    """Nothing can be done to it, and not a byte changes."""
    with store_browser(golden_read_only("basic-4.9") / "store") as browser:
        assert "Writer STOPPED" in words(browser.text("/"))
        for page in ("/topics", "/groups", "/messages", "/log", "/dispatchers", "/dispatchers/index", "/audit"):
            browser.text(page)
        assert "Rebuild…" not in browser.text("/dispatchers/index")
        assert "no program has this store open" in words(browser.text("/dispatchers/index/pause", 503))
        assert "reput_writer_state" in browser.text("/metrics")


@pytest.mark.slow
def test_brokers_are_shown_with_their_topics_groups_consumers_and_messages(tmp_path):
    """Through an address; they have no dispatchers. A group is moved from there."""
    with served(tmp_path / "store") as broker, broker.client() as client:
        client.send_message("orders", b"hello", {"KEYS": "k"})
        client.heartbeat("consumer-1", billing={"orders": "*"})
        broker.wait_until_readable()
        address = Path("{}:{}".format(*broker.address))
        with shown_target(address, None, None) as target, browser_of(target) as browser:
            broker.call(lambda: broker.engine.services.managers.offsets.commit_offset("billing", "orders", 0, 1))
            assert "1 brokers" not in browser.text("/")
            assert "broker-a 0" in words(browser.text("/"))
            assert "orders" in words(browser.text("/topics"))
            assert "consumer-1" in words(browser.text("/groups/billing"))
            (link,) = MESSAGE_LINK.findall(browser.text("/messages?topic=orders"))
            assert "hello" in words(browser.text(link))
            assert "/dispatchers" not in browser.text("/")
            browser.text("/dispatchers", 404)
            browser.text("/metrics", 404)
            assert "continues at earliest" in browser.text("/groups/billing/reset?topic=orders&to=earliest")
            assert "broker-a Nobody follows it." not in words(browser.text("/brokers"))
            assert "Nobody follows it." in browser.text("/brokers")


@pytest.mark.slow
def test_dead_letters_are_put_back_and_a_quota_s_refusals_are_shown(tmp_path):
    """Both through the broker: how many letters before the confirmation, then what became of them."""
    with served(tmp_path / "store", broker_quotas="topic=small messages=1") as broker:
        address = Path("{}:{}".format(*broker.address))
        with reput.connect(str(address)) as client:
            client.put(reput.Message("orders", b"bad", keys=["k"]))
            with client.consumer("billing", "orders") as consumer:
                consumer.retry(consumer.receive(LIMIT_S), -1)
            wait_until(lambda: list(client.administration.dead_letters("billing").read()) != [])
            client.put_batch([reput.Message("small", b"x")] * 60)
            with pytest.raises(RequestRefused):
                client.put(reput.Message("small", b"x"))
            with shown_target(address, None, None) as target, browser_of(target) as browser:
                assert "topic small" in words(browser.text("/brokers"))
                assert "Dead letters that were not put back yet" in browser.text("/groups/billing")
                assert "not a whole number: count=" in words(browser.text("/groups/billing/redrive?count=x", 400))
                assert "to the topic or to the group" in browser.text("/groups/billing/redrive?redrive_to=x", 400)
                asked = browser.text("/groups/billing/redrive")
                assert "1 dead letters of billing are put back, into the topics" in asked
                assert "for this group alone" in browser.text("/groups/billing/redrive?redrive_to=group")
                assert (
                    browser.outcome(browser.send("/groups/billing/redrive", redrive_to="topic")) == "done: 1 redriven"
                )
                assert "0 dead letters of billing" in browser.text("/groups/billing/redrive")
                assert "Dead letters that were not put back yet" not in browser.text("/groups/billing")
            wait_until(lambda: sum(client.queue_range("orders", at)[1] for at in client.queue_ids("orders")) == 2)


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/nothing", 404, "There is no such page"),
        ("/message?id=zz", 400, "needs a message id"),
        ("/message?id=" + "0" * 32, 404, "there is no such message"),
        ("/messages?topic=t&queue_id=x", 400, "not a whole number: queue_id='x'"),
        ("/messages?topic=t&time=noon", 400, "this is no time: time='noon'"),
        ("/topics/nothing", 404, "topic does not exist"),
        ("/groups/nothing", 404, "consumer group does not exist"),
        ("/jobs/7", 404, "this action is not remembered any more"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(path, status, sentence, golden_read_only):
    """On a page of the console, with the status that scripts expect."""
    with store_browser(golden_read_only("basic-4.9") / "store") as browser:
        assert sentence in words(browser.text(path, status))


def test_pages_ask_for_nothing_from_elsewhere():
    """No address of another host stands in a template, a style or a script, and no style or script inline."""
    folder = ROOT / "core" / "reput" / "console"
    for path in [*folder.glob("templates/*"), *folder.glob("static/*")]:
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(|\bstyle=|\son[a-z]+=|<script>|<style", text), path


@pytest.mark.processes
def test_a_broker_has_a_console_beside_it_that_may_die(tmp_path):
    """`reput serve --console`: another process, which is started again; it ends with the broker."""
    command = [REPUT, "serve", tmp_path / "store", "--listen", "127.0.0.1:0", "--name-server", "none"]
    command += ["--console", "127.0.0.1:0", "--set", "mappedFileSizeCommitLog=65536"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as serving:
        try:
            assert serving.stdout is not None
            address = re.search(r" console=(\S+)", serving.stdout.readline())
            assert address is not None

            def shown() -> str:
                with urllib.request.urlopen(address[1], timeout=LIMIT_S) as answer:
                    return answer.read().decode()

            assert "Writer RUNNING" in words(shown())
            (console,) = children(serving.pid, "/console/")
            os.kill(console, 9)
            # The socket stays open meanwhile: the browser waits.
            assert "Writer RUNNING" in words(shown())
            (again,) = children(serving.pid, "/console/")
            assert again != console
        finally:
            serving.terminate()
        assert serving.wait(LIMIT_S) == 0
    wait_until(lambda: not Path(f"/proc/{again}").exists())


def children(parent: int, part: str) -> list[int]:
    """Return the processes below a process whose command line has *part*."""
    return [pid for pid, command in descendants(parent).items() if part in command]


@pytest.mark.parametrize(
    "options",
    [["--listen", "0.0.0.0:0"], ["--listen", "0.0.0.0:0", "--insecure"]],
    ids=["open", "without accounts"],
)
def test_beyond_this_machine_a_console_needs_accounts_and_encryption(options, golden_read_only):
    """Exit code 2, and which options are missing."""
    ended = run_reput("console", golden_read_only("basic-4.9") / "store", *options)
    assert ended.code == 2
    assert "a console beyond this machine needs accounts and encryption" in ended.stderr


def test_without_its_libraries_the_console_names_the_extra(monkeypatch):
    """`pip install "reput[console]"`."""
    from reput.cli.target import console_target

    monkeypatch.setattr(console_target, "MODULES", ("no_such_module_at_all",))
    with pytest.raises(ConfigError) as raised:
        console_target.require_console()
    assert 'pip install "reput[console]"' in raised.value.advice
