"""Bodies in fastjson's dialect: keys that are objects, written and read."""

from __future__ import annotations

import msgspec
import pytest

from reput.broker.admin.admin_bodies import object_keyed, parse_body, queue_table
from reput.errors import RequestRefused
from reput.remoting.message_queue import MessageQueue

QUEUE = MessageQueue("a", 0, "T")


def test_a_key_that_is_an_object_is_written_as_fastjson_does():
    """Mqadmin reads this form only, which is no JSON."""
    body = msgspec.json.encode({"offsetTable": object_keyed({QUEUE: 5, MessageQueue("a", 1, "T"): 7})})
    assert body == (
        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:5,{"brokerName":"a","queueId":1,"topic":"T"}:7}}'
    )


def test_an_empty_map_is_written_as_such():
    """A group without offsets has one."""
    assert msgspec.json.encode(object_keyed({})) == b"{}"


@pytest.mark.parametrize(
    "text",
    [
        '{{"brokerName":"a","queueId":0,"topic":"T"}:5}',
        '{ {topic:"T", brokerName:"a", queueId:0} : 5, }',
        r'{"{\"brokerName\":\"a\",\"queueId\":0,\"topic\":\"T\"}":5}',
        '[{"brokerName":"a","queueId":0,"topic":"T","offset":5}]',
    ],
)
def test_each_form_of_a_map_by_queues_is_read(text):
    """Java writes objects as keys, others text, and the client in C++ a list."""
    assert queue_table(parse_body(text.encode()), "offset") == {QUEUE: 5}


def test_bare_and_quoted_numbers_are_keys():
    """Offsets come as {0:5} from Java, and as {"0":5} from everything else."""
    assert parse_body(b'{0:5,"1":7}') == {0: 5, "1": 7}


@pytest.mark.parametrize("text", [b"", b"{", b'{{"topic":"T"}:5}', b"{{{}:1}:5}", b"\xff", b"[" * 100_000])
def test_what_is_no_body_is_refused(text):
    """Torn, incomplete, no text, or so deep that reading it would exhaust the stack."""
    with pytest.raises(RequestRefused):
        queue_table(parse_body(text), "offset")


@pytest.mark.parametrize("table", [7, "T", {"T": 5}, [5]])
def test_what_is_no_map_by_queues_is_refused(table):
    """Such bodies come from clients."""
    with pytest.raises(RequestRefused):
        queue_table(table, "offset")
