"""What a broker tells name servers elsewhere."""

from __future__ import annotations

import json

from reput.remoting.request_code import RequestCode
from reput.remoting.response_code import ResponseCode


def registered(broker):
    """Return the registered topics by name: queues to read, and permission."""
    wrapper = json.loads(broker.call(broker.broker.registration.body))["topicConfigSerializeWrapper"]
    return {name: (topic["readQueueNums"], topic["perm"]) for name, topic in wrapper["topicConfigTable"].items()}


def set_topic(client, topic, queues):
    """Create or change a topic."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    nums = {"readQueueNums": queues, "writeQueueNums": queues}
    assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | nums).code == ResponseCode.SUCCESS


def test_every_change_of_a_topic_is_registered(broker, client):
    """Although the text of a topic is kept until it changes."""
    set_topic(client, "orders", "2")
    set_topic(client, "mails", "1")
    assert registered(broker)["orders"] == (2, 6)
    set_topic(client, "orders", "5")
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "mails"}).code == ResponseCode.SUCCESS
    found = registered(broker)
    assert found["orders"] == (5, 6)
    assert "mails" not in found
    changed = client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")
    assert changed.code == ResponseCode.SUCCESS
    assert registered(broker)["orders"] == (5, 4)
