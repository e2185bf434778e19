"""Accounts: signatures, permissions, white addresses, changes of the file, and what needs an administrator."""

from __future__ import annotations

import json
import logging

import pytest
import yaml

from access_rules import go_signed, java_signed
from delivering import wait_until
from reput.access import access_control
from reput.errors import ConfigError
from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode
from serving import RawClient, heartbeat_body, send_fields, served

REFUSED = ResponseCode.SYSTEM_ERROR
ADMIN, ORDERS, READER = ("admin-key", "admin-secret"), ("orders-key", "12345678"), ("reader-key", "reader-secret")
ACCOUNTS = {
    "globalWhiteRemoteAddresses": [],
    "accounts": [
        {"accessKey": ADMIN[0], "secretKey": ADMIN[1], "admin": True},
        {
            "accessKey": ORDERS[0],
            # A number in YAML, and a text all the same.
            "secretKey": int(ORDERS[1]),
            "admin": False,
            "whiteRemoteAddress": None,
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "SUB",
            "topicPerms": ["orders=PUB|SUB", "audit=PUB", "news=SUB"],
            "groupPerms": ["secret=DENY"],
        },
        {
            "accessKey": READER[0],
            "secretKey": READER[1],
            "defaultTopicPerm": "SUB",
            "defaultGroupPerm": "DENY",
            "groupPerms": ["readers=SUB"],
        },
    ],
}


def write(path, accounts):
    """Write a file of accounts."""
    path.write_text(yaml.safe_dump(accounts))
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A broker with accounts, for the tests that do not change them."""
    folder = tmp_path_factory.mktemp("access")
    path = write(folder / "plain_acl.yml", ACCOUNTS)
    with served(folder / "store", acl_enable=True, acl_file=str(path)) as broker:
        yield broker


@pytest.fixture
def client(shared):
    """A connection to `shared`."""
    with shared.client() as client:
        yield client


def ask(client, account, code, fields=None, body=b"", signed=java_signed, **header):
    """Ask with an account's signature; return the code of the answer."""
    return client.ask(code, signed(fields or {}, body, *account), body, **header).code


def send(client, account, topic, code=Code.SEND_MESSAGE_V2, signed=java_signed, body=b"body", **fields):
    """Send a message with an account's signature; return the code of the answer."""
    return ask(client, account, code, send_fields(topic, None, 0, code, fields), body, signed)


def beat(client, account, groups):
    """Send a heartbeat of consumer groups and their topics."""
    body = heartbeat_body("me", ("pg",), {group: dict.fromkeys(topics, "*") for group, topics in groups.items()})
    return ask(client, account, Code.HEART_BEAT, {}, body)


@pytest.mark.parametrize("signed", [java_signed, go_signed])
@pytest.mark.parametrize("code", [Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2])
def test_a_right_signature_passes(client, signed, code):
    """By the rules of the Java client and of the Go client, with a body and without."""
    assert send(client, ORDERS, "orders", code, signed) == 0
    assert ask(client, ORDERS, Code.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}, b"", signed) == 0


@pytest.mark.parametrize("signed", [java_signed, go_signed])
def test_a_security_token_is_signed_by_java_and_not_by_go(client, signed):
    """Both pass."""
    fields = send_fields("orders")
    assert client.ask(Code.SEND_MESSAGE_V2, signed(fields, b"body", *ORDERS, "token"), b"body").code == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: {**fields, "b": "audit"},
        lambda fields: {**fields, "Signature": ""},
        lambda fields: {**fields, "Signature": "x\u00e9"},
        lambda fields: {**fields, "Signature": fields["Signature"][:-4]},
        lambda fields: {**fields, "more": "x"},
        lambda fields: {**fields, "AccessKey": READER[0]},
        lambda fields: {**fields, "AccessKey": "nobody-knows"},
        lambda fields: {name: value for name, value in fields.items() if name != "AccessKey"},
        lambda fields: {name: value for name, value in fields.items() if name != "Signature"},
        lambda fields: {},
    ],
)
def test_what_is_changed_after_it_was_signed_is_refused(shared, client, change):
    """With code 1 and the reason; nothing is stored."""
    before = shared.engine.appended
    answer = client.ask(Code.SEND_MESSAGE_V2, change(java_signed(send_fields("orders"), b"body", *ORDERS)), b"body")
    assert answer.code == REFUSED
    assert answer.remark
    assert shared.engine.appended == before


def test_a_changed_body_is_refused(client):
    """It is signed as well."""
    fields = java_signed(send_fields("orders"), b"body", *ORDERS)
    assert client.ask(Code.SEND_MESSAGE_V2, fields, b"bodY").code == REFUSED


def test_a_request_without_answer_is_not_executed_either(shared, client):
    """It is refused in silence."""
    before = shared.engine.appended
    client.begin(Code.SEND_MESSAGE_V2, send_fields("orders"), b"body", oneway=True)
    client.begin(Code.SEND_MESSAGE_V2, java_signed(send_fields("orders"), b"b", *ORDERS), b"body", oneway=True)
    assert ask(client, ORDERS, Code.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}) == 0
    assert shared.engine.appended == before


@pytest.mark.parametrize(("version", "is_signed"), [(399, False), (399, True), (400, True), (479, True)])
def test_a_query_by_unique_key_is_signed_as_its_version_does(client, version, is_signed):
    """Clients up to 4.9.3 add the field after they have signed; the content then lacks it."""
    fields = {"topic": "orders", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    more = {"_UNIQUE_KEY_QUERY": "true"}
    if is_signed and version >= 400:
        fields, more = {**fields, **more}, {}
    signed = {**java_signed(fields, b"", *ORDERS), **more}
    assert client.ask(Code.QUERY_MESSAGE, signed, version=version).code == ResponseCode.QUERY_NOT_FOUND


def test_the_field_of_a_newer_version_must_be_signed(client):
    """From 4.9.4 on it is part of the content."""
    fields = {"topic": "orders", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    signed = {**java_signed(fields, b"", *ORDERS), "_UNIQUE_KEY_QUERY": "true"}
    assert client.ask(Code.QUERY_MESSAGE, signed, version=479).code == REFUSED


@pytest.mark.parametrize(
    ("account", "topic", "code"),
    [
        (ORDERS, "orders", 0),
        (ORDERS, "audit", 0),
        (ORDERS, "news", REFUSED),
        (ORDERS, "other", REFUSED),
        (ORDERS, "%RETRY%billing", 0),
        (ORDERS, "%RETRY%secret", REFUSED),
        (ORDERS, "RMQ_SYS_TRACE_TOPIC", 0),
        (READER, "orders", REFUSED),
        (ADMIN, "anything", 0),
    ],
)
def test_sending_needs_pub(client, account, topic, code):
    """Of the topic; a retry topic belongs to its group."""
    assert send(client, account, topic) == code
    assert send(client, account, topic, Code.SEND_MESSAGE) == code


@pytest.mark.parametrize("code", [Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2])
def test_batches_and_replies_are_no_way_around(shared, client, code):
    """RocketMQ 4 checks only their signature; a reply to the reply topic needs no permission here either."""
    before = shared.engine.appended
    assert send(client, READER, "other", code) == REFUSED
    assert shared.engine.appended == before


@pytest.mark.parametrize(
    ("account", "group", "topic", "is_allowed"),
    [
        (ORDERS, "billing", "orders", True),
        (ORDERS, "billing", "news", True),
        (ORDERS, "billing", "audit", False),
        (ORDERS, "secret", "orders", False),
        (ORDERS, "billing", "%RETRY%billing", True),
        (ORDERS, "billing", "%RETRY%secret", False),
        (READER, "readers", "orders", True),
        (READER, "billing", "orders", False),
        (ADMIN, "any", "orders", True),
    ],
)
def test_consuming_needs_sub_of_topic_and_group(client, account, group, topic, is_allowed):
    """In heartbeats, pulls and commits."""
    assert (beat(client, account, {group: [topic]}) != REFUSED) is is_allowed
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}
    assert (ask(client, account, Code.UPDATE_CONSUMER_OFFSET, fields) != REFUSED) is is_allowed
    fields |= {"queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4", "suspendTimeoutMillis": "0", "subVersion": "0"}
    for code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE):
        assert (ask(client, account, code, fields) != REFUSED) is is_allowed


def test_one_topic_of_a_heartbeat_that_is_not_allowed_refuses_it(shared, client):
    """No group of it is registered."""
    assert beat(client, ORDERS, {"billing": ["orders"], "other": ["audit"]}) == REFUSED
    assert shared.call(lambda: "other" not in shared.broker.clients.consumers)


@pytest.mark.parametrize("code", [Code.UNREGISTER_CLIENT, Code.CONSUMER_SEND_MSG_BACK, Code.GET_CONSUMER_LIST_BY_GROUP])
def test_a_group_s_members_need_sub_of_it(client, code):
    """The reason names the group."""
    fields = {"consumerGroup": "secret", "group": "secret", "clientID": "me", "offset": "0", "delayLevel": "0"}
    answer = client.ask(code, java_signed(fields, b"", *ORDERS))
    assert answer.code == REFUSED
    assert "group secret" in answer.remark


ADMINISTRATION = [
    (Code.UPDATE_AND_CREATE_TOPIC, b""),
    (Code.DELETE_TOPIC_IN_BROKER, b""),
    (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g"}'),
    (Code.DELETE_SUBSCRIPTIONGROUP, b""),
    (Code.UPDATE_BROKER_CONFIG, b"autoCreateTopicEnable=false"),
    (Code.GET_BROKER_CONFIG, b""),
    (Code.GET_ALL_CONSUMER_OFFSET, b""),
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, b""),
    (Code.CONSUME_MESSAGE_DIRECTLY, b""),
    (Code.GET_CONSUMER_RUNNING_INFO, b""),
    (Code.CLEAN_EXPIRED_CONSUMEQUEUE, b""),
    (Code.DELETE_EXPIRED_COMMITLOG, b""),
]


@pytest.mark.parametrize(("code", "body"), ADMINISTRATION)
def test_administration_needs_an_administrator(client, code, body):
    """Also what only shows the configuration, or what clients do: CVE-2024-23321."""
    fields = {"topic": "orders", "groupName": "g", "consumerGroup": "g", "group": "g", "clientId": "c"}
    answer = client.ask(code, java_signed(fields, body, *ORDERS), body)
    assert answer.code == REFUSED
    assert "admin" in answer.remark
    answer = client.ask(code, java_signed(fields, body, *ADMIN), body)
    assert "Need admin" not in (answer.remark or "")


def test_an_unknown_code_is_still_unknown(client):
    """Newer clients ask for what this broker does not have."""
    assert ask(client, ORDERS, 200050) == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_routes_need_no_account(client):
    """RocketMQ's name server has none."""
    for code in (Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_BROKER_CLUSTER_INFO, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER):
        assert client.ask(code, {"topic": "TBW102"}).code == 0


NAME_SERVER_CHANGES = [
    Code.REGISTER_BROKER,
    Code.UNREGISTER_BROKER,
    Code.PUT_KV_CONFIG,
    Code.DELETE_KV_CONFIG,
    Code.DELETE_TOPIC_IN_NAMESRV,
    Code.WIPE_WRITE_PERM_OF_BROKER,
    Code.ADD_WRITE_PERM_OF_BROKER,
    Code.REGISTER_TOPIC_IN_NAMESRV,
    Code.BROKER_HEARTBEAT,
]
FIELDS = {
    "namespace": "n",
    "key": "k",
    "value": "v",
    "topic": "T",
    "brokerName": "other",
    "brokerId": "0",
    "clusterName": "c",
    "brokerAddr": "192.0.2.1:10911",
}


@pytest.mark.parametrize("code", NAME_SERVER_CHANGES)
def test_changes_of_routes_need_an_administrator_or_this_machine(shared, client, monkeypatch, code):
    """A stranger who registers a broker gets the messages of all clients."""
    passed = client.ask(code, FIELDS)
    assert "accessKey" not in (passed.remark or "")
    monkeypatch.setattr(access_control, "LOOPBACK", ("none",))
    with shared.client() as remote:
        assert remote.ask(code, FIELDS).remark == "No accessKey is configured"
        assert "Need admin" in remote.ask(code, java_signed(FIELDS, b"", *ORDERS)).remark
        assert "admin" not in (remote.ask(code, java_signed(FIELDS, b"", *ADMIN)).remark or "")


def serving(tmp_path, accounts):
    """Serve a store with accounts."""
    path = write(tmp_path / "plain_acl.yml", accounts)
    return served(tmp_path / "store", acl_enable=True, acl_file=str(path))


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "*", "*.*.*.*", "127.0.0.*", "127.*.*.*", "127.*", "127.0.0.0-9", "127.0.0.{1,7}"),
        *("10.0.0.1,127.0.0.1", "127.0.0-3.{0-5,9}"),
    ],
)
@pytest.mark.parametrize("is_global", [True, False])
def test_white_addresses_need_no_signature(tmp_path, address, is_global):
    """Of all clients, or of an account; that one's key must be named."""
    account = {"accessKey": ORDERS[0], "secretKey": ORDERS[1]}
    if is_global:
        accounts = {"globalWhiteRemoteAddresses": [address], "accounts": [account]}
    else:
        accounts = {"accounts": [{**account, "whiteRemoteAddress": address}]}
    with serving(tmp_path, accounts) as broker, broker.client() as client:
        fields = {} if is_global else {"AccessKey": ORDERS[0]}
        assert client.ask(Code.SEND_MESSAGE_V2, {**send_fields("T"), **fields}, b"body").code == 0
        assert is_global or client.ask(Code.SEND_MESSAGE_V2, send_fields("T"), b"body").code == REFUSED


@pytest.mark.parametrize("address", ["127.0.0.2", "126.*.*.*", "127.0.0.2-9", "127.0.0.{2,3}", "::1", "fe80:*"])
def test_other_addresses_are_not_white(tmp_path, address):
    """Each number is compared."""
    accounts = {"globalWhiteRemoteAddresses": [address]}
    with serving(tmp_path, accounts) as broker, broker.client() as client:
        assert client.ask(Code.SEND_MESSAGE_V2, send_fields("T"), b"body").code == REFUSED


def test_a_changed_file_holds_from_then_on(tmp_path, monkeypatch):
    """Connections stay; no restart is needed."""
    monkeypatch.setattr(access_control, "LOOK_S", 0.01)
    account = {"accessKey": ORDERS[0], "secretKey": ORDERS[1], "defaultTopicPerm": "PUB"}
    with serving(tmp_path, {"accounts": [account]}) as broker, broker.client() as client:
        assert send(client, ORDERS, "T") == 0
        write(tmp_path / "plain_acl.yml", {"accounts": [{**account, "secretKey": "another-secret"}]})
        wait_until(lambda: send(client, (ORDERS[0], "another-secret"), "T") == 0)
        assert send(client, ORDERS, "T") == REFUSED


@pytest.mark.parametrize(
    "text", ["accounts: [", "accounts: 7", "accounts: [{accessKey: short, secretKey: short}]", None]
)
def test_a_file_that_becomes_wrong_changes_nothing(tmp_path, monkeypatch, caplog, text):
    """It is logged; also one that is gone."""
    monkeypatch.setattr(access_control, "LOOK_S", 0.01)
    account = {"accessKey": ORDERS[0], "secretKey": ORDERS[1], "defaultTopicPerm": "PUB"}
    path = tmp_path / "plain_acl.yml"
    with caplog.at_level(logging.ERROR), serving(tmp_path, {"accounts": [account]}) as broker:
        path.unlink() if text is None else path.write_text(text)
        wait_until(lambda: "the former accounts stay in use" in caplog.text)
        with broker.client() as client:
            assert send(client, ORDERS, "T") == 0


@pytest.mark.parametrize(
    ("accounts", "text"),
    [
        ({"accounts": [{"accessKey": "short", "secretKey": "long-enough"}]}, "accessKey_size=5"),
        ({"accounts": [{"accessKey": "long-enough", "secretKey": "short"}]}, "secretKey_size=5"),
        ({"accounts": [{"accessKey": "long-enough"}]}, "secretKey"),
        ({"accounts": [{"accessKey": "long-enough", "secretKey": "long-enough"}] * 2}, "described twice"),
        (
            {"accounts": [{"accessKey": "long-enough", "secretKey": "long-enough", "topicPerms": ["T=ALL"]}]},
            "DENY, ANY, PUB, SUB",
        ),
        (
            {"accounts": [{"accessKey": "long-enough", "secretKey": "long-enough", "topicPerms": ["T"]}]},
            "NAME=PERMISSION",
        ),
        ({"accounts": [{"accessKey": "long-enough", "secretKey": "long-enough", "admn": True}]}, "admn"),
        ({"globalWhiteRemoteAddresses": ["10.0.0.x"]}, "10.0.0.x"),
        ({"globalWhiteRemoteAddresses": ["10.0.0.1-300"]}, "10.0.0.1-300"),
        ({"globalWhiteRemoteAddresses": ["10.0"]}, "10.0"),
        ([1], "does not describe accounts"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start(tmp_path, accounts, text):
    """With the file, the account and the member."""
    with pytest.raises(ConfigError) as caught, serving(tmp_path, accounts):
        pass
    assert text in str(caught.value)
    assert "plain_acl.yml" in str(caught.value)


def test_secrets_are_in_no_error(tmp_path):
    """Errors and logs are read by others."""
    account = {"accessKey": "long-enough", "secretKey": "the-secret-itself", "topicPerms": ["T=ALL"]}
    with pytest.raises(ConfigError) as caught, serving(tmp_path, {"accounts": [account]}):
        pass
    assert "the-secret-itself" not in str(caught.value)


def test_the_default_file_lies_in_the_store(tmp_path):
    """Without it the broker does not start."""
    with pytest.raises(ConfigError, match=r"config/plain_acl\.yml"), served(tmp_path / "store", acl_enable=True):
        pass


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"authorization_enabled": True}, "policies need users"),
        ({"authentication_enabled": True, "acl_enable": True}, "RocketMQ 4 exclude users of RocketMQ 5"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path, settings, text):
    """One of both must go."""
    with pytest.raises(ConfigError, match=text), served(tmp_path / "store", **settings):
        pass


def test_refusals_fill_no_log(tmp_path, caplog):
    """Strangers decide how many there are: one line a second, which counts the others."""
    with caplog.at_level(logging.WARNING), serving(tmp_path, ACCOUNTS) as broker, broker.client() as client:
        for _ in range(200):
            client.ask(Code.SEND_MESSAGE_V2, send_fields("T"), b"body")
    assert 1 <= len([record for record in caplog.records if "a request is refused" in record.message]) < 20


def read_by_place(client, owner, account, topic, group="g", **properties):
    """Send a message as *owner*; return the codes of viewing it, and of sending it back, as *account*."""
    fields = java_signed(send_fields(topic, properties), b"body", *owner)
    answer = client.ask(Code.SEND_MESSAGE_V2, fields, b"body")
    assert answer.code == 0, answer.remark
    place = {"offset": str(int(answer.ext_fields["msgId"][-16:], 16))}
    back = {**place, "group": group, "delayLevel": "1"}
    codes = (Code.VIEW_MESSAGE_BY_ID, place), (Code.CONSUMER_SEND_MSG_BACK, back)
    return [ask(client, account, code, fields) for code, fields in codes]


@pytest.mark.parametrize("properties", [{}, {"DELAY": "18"}])
@pytest.mark.parametrize(
    ("account", "topic", "is_allowed"),
    [(ADMIN, "audit", True), (ORDERS, "orders", True), (ORDERS, "audit", False), (ORDERS, "%RETRY%secret", False)],
)
def test_a_record_s_place_is_no_way_around(tmp_path, account, topic, is_allowed, properties):
    """A record is read, or copied for a group, only with SUB of its topic, or of that to which it will be delivered."""
    with serving(tmp_path, ACCOUNTS) as broker, broker.client() as client:
        assert beat(client, ADMIN, {"g": ["orders"], "secret": ["orders"]}) == 0
        codes = read_by_place(client, ADMIN, account, topic, **properties)
        assert codes == [0, 0] if is_allowed else [REFUSED, REFUSED]
        record = broker.call(lambda: broker.engine.reader.store.record_at(0))
        assert (broker.engine.appended > record.record_size) == is_allowed


def test_a_message_is_consumed_directly_with_sub_alone(tmp_path):
    """Also by an administrator whose topics are listed."""
    listed = {"accessKey": "listed-key", "secretKey": "listed-secret", "admin": True, "topicPerms": ["orders=PUB|SUB"]}
    accounts = {"accounts": [*ACCOUNTS["accounts"], {**listed, "defaultGroupPerm": "SUB"}]}
    with serving(tmp_path, accounts) as broker, broker.client() as client, broker.client() as member:
        assert beat(member, ADMIN, {"g": ["audit"]}) == 0
        sent = client.ask(Code.SEND_MESSAGE_V2, java_signed(send_fields("audit"), b"body", *ADMIN), b"body")
        broker.wait_until_readable()
        fields = {"consumerGroup": "g", "clientId": "me", "msgId": sent.ext_fields["msgId"]}
        answer = client.ask(
            Code.CONSUME_MESSAGE_DIRECTLY, java_signed(fields, b"", listed["accessKey"], listed["secretKey"])
        )
        assert answer.code == REFUSED
        assert "No permission for topic audit" in answer.remark
        opaque = client.begin(Code.CONSUME_MESSAGE_DIRECTLY, java_signed(fields, b"", *ADMIN))
        member.respond(member.request(Code.CONSUME_MESSAGE_DIRECTLY))
        assert client.answer_to(opaque).code == 0


# RocketMQ 5.

AUTH = {
    "users": [
        {"username": "root", "password": "root-secret", "type": "Super"},
        {"username": "orders", "password": "orders-secret"},
        {"username": "gone", "password": "gone-secret", "status": "disable"},
    ],
    "policies": [
        {"subject": "User:orders", "resources": ["Topic:orders*", "Group:*"], "actions": ["Pub", "Sub"]},
        {"subject": "User:orders", "resources": ["Topic:orders-secret*"], "actions": ["All"], "decision": "Deny"},
        {"subject": "User:orders", "resources": ["Topic:orders-secret-not"], "actions": ["Pub"]},
        {"subject": "User:orders", "resources": ["Topic:far"], "actions": ["Pub"], "sources": ["10.0.0.*"]},
    ],
}
ROOT, USER = ("root", "root-secret"), ("orders", "orders-secret")


@pytest.fixture
def auth_broker(tmp_path):
    """A broker with users and policies."""
    path = write(tmp_path / "auth.yml", AUTH)
    settings = {"authentication_enabled": True, "authorization_enabled": True, "auth_file": str(path)}
    with served(tmp_path / "store", **settings) as broker:
        yield broker


@pytest.mark.parametrize(
    ("account", "topic", "is_allowed"),
    [
        (ROOT, "anything", True),
        (USER, "orders", True),
        (USER, "orders-new", True),
        (USER, "other", False),
        (USER, "orders-secret", False),
        (USER, "orders-secret-not", True),
        (USER, "far", False),
        (("gone", "gone-secret"), "orders", False),
        (("nobody", "x"), "orders", False),
        (("orders", "wrong"), "orders", False),
    ],
)
def test_users_and_policies_of_rocketmq_5(auth_broker, account, topic, is_allowed):
    """The most exact policy decides; a refusal has code 16."""
    with auth_broker.client() as client:
        assert send(client, account, topic) == (0 if is_allowed else ResponseCode.NO_PERMISSION)


def test_rocketmq_5_checks_more_requests(auth_broker):
    """Offsets and locks belong to topics and groups; administration to a super user."""
    with auth_broker.client() as client:
        for topic, code in (("orders", 0), ("other", ResponseCode.NO_PERMISSION)):
            assert ask(client, USER, Code.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}) == code
        lock = json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": []}).encode()
        assert ask(client, USER, Code.LOCK_BATCH_MQ, {}, lock) == 0
        assert ask(client, USER, Code.GET_BROKER_CONFIG) == ResponseCode.NO_PERMISSION
        assert ask(client, ROOT, Code.GET_BROKER_CONFIG) == 0


def test_a_record_s_place_is_no_way_around_policies(auth_broker):
    """A refusal has code 16; a super user reads everything."""
    with auth_broker.client() as client:
        assert beat(client, ROOT, {"g": ["orders"]}) == 0
        refused = [ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION]
        assert read_by_place(client, ROOT, USER, "orders") == [0, 0]
        assert read_by_place(client, ROOT, USER, "other") == refused
        assert read_by_place(client, ROOT, USER, "orders-secret") == refused
        assert read_by_place(client, ROOT, ROOT, "orders-secret") == [0, 0]


def test_without_policies_every_user_passes(tmp_path):
    """authentication_enabled alone checks passwords."""
    path = write(tmp_path / "auth.yml", AUTH)
    with (
        served(tmp_path / "store", authentication_enabled=True, auth_file=str(path)) as broker,
        broker.client() as client,
    ):
        assert send(client, USER, "other") == 0
        assert beat(client, USER, {"g": ["other"]}) == 0
        assert read_by_place(client, ROOT, USER, "other") == [0, 0]
        assert send(client, ("orders", "wrong"), "other") == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"policies": [{"subject": "User:none", "resources": ["*"], "actions": ["Pub"]}]}, "User:none"),
        ({"policies": [{"subject": "User:orders", "resources": ["orders"], "actions": ["Pub"]}]}, "Topic:NAME"),
        ({"policies": [{"subject": "User:orders", "resources": ["*"], "actions": ["Get"]}]}, "actions"),
        ({"users": AUTH["users"] * 2}, "described twice"),
        ({"user": []}, "user"),
    ],
)
def test_a_wrong_file_of_users_is_refused_at_the_start(tmp_path, change, text):
    """With what is wrong."""
    path = write(tmp_path / "auth.yml", {**AUTH, **change})
    with (
        pytest.raises(ConfigError) as caught,
        served(tmp_path / "store", authentication_enabled=True, auth_file=str(path)),
    ):
        pass
    assert text in str(caught.value)


def test_a_broker_without_accounts_checks_nothing(tmp_path):
    """Not even a call is made."""
    with served(tmp_path / "store") as broker:
        assert broker.broker.server.guard is None
        connection = broker.call(broker.broker.server.new_connection)
        assert connection.handler == broker.broker.server.handle


def test_the_own_user_passes_over_a_unix_socket(tmp_path):
    """The command line needs no account on the broker's machine."""
    import asyncio
    import socket

    name = f"\0reput-test-access-{tmp_path}"
    with serving(tmp_path, ACCOUNTS) as broker:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(name)
        asyncio.run_coroutine_threadsafe(broker.broker.listen(listener), broker.loop).result(60)
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.connect(name)
        with RawClient(broker.address, wrap=lambda tcp: (tcp.close(), plain)[1]) as client:
            assert client.send_message("T").code == 0
