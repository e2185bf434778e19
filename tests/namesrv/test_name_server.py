"""The name server beside the broker: every request about routes, by frames."""

from __future__ import annotations

import json
import zlib

import pytest

from reput.remoting.request_code import RequestCode as Code
from reput.remoting.response_code import ResponseCode
from serving import served


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One broker for the tests of this module, which clean up behind themselves."""
    with served(tmp_path_factory.mktemp("namesrv") / "store") as broker:
        yield broker


@pytest.fixture
def client(shared):
    """A connection to the name server."""
    with shared.client() as client:
        yield client


def registration(topics=("orders",), counter=1):
    """Return the body of a broker's registration."""
    table = {
        topic: {"topicName": topic, "perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "order": False}
        for topic in topics
    }
    version = {"counter": counter, "stateVersion": 0, "timestamp": 7}
    wrapper = {"dataVersion": version, "topicConfigTable": table}
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()


def fields_of(name="other", address="192.0.2.1:10911", broker_id=0, cluster="DefaultCluster", **more):
    """Return the header of a registration."""
    return {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": cluster,
        "haServerAddr": "192.0.2.1:10912",
        "brokerId": str(broker_id),
        **more,
    }


def register(client, body=None, **fields):
    """Register a broker."""
    return client.ask(Code.REGISTER_BROKER, fields_of(**fields), registration() if body is None else body)


def route(client, topic):
    """Return the route of a topic; None: it has none."""
    answer = client.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    assert answer.code == ResponseCode.SUCCESS
    return json.loads(answer.body)


def test_the_template_of_topics_has_a_route(shared, client):
    """Producers ask for it before their first message to a new topic."""
    found = route(client, "TBW102")
    assert found["queueDatas"] == [
        {"brokerName": "broker-a", "perm": 7, "readQueueNums": 8, "topicSysFlag": 0, "writeQueueNums": 8}
    ]
    (data,) = found["brokerDatas"]
    assert data["brokerAddrs"] == {"0": f"127.0.0.1:{shared.address[1]}"}
    assert (data["brokerName"], data["cluster"]) == ("broker-a", "DefaultCluster")


def test_a_route_has_no_blanks(client):
    """The Go client splits its text at commas and colons."""
    body = client.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}).body
    assert b" " not in body
    assert b'"brokerAddrs":{"0":"127.0.0.1:' in body


def test_an_unknown_topic_has_no_route(client):
    """Code 17, with the topic in the remark."""
    answer = client.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "No topic route info in name server for the topic: nowhere"


def test_a_topic_of_a_first_message_has_a_route_at_once(client):
    """The next question finds it."""
    assert client.send_message("first").code == ResponseCode.SUCCESS
    assert route(client, "first")["queueDatas"][0]["writeQueueNums"] == 4


def test_the_cluster_and_its_topics(client):
    """What tools ask for."""
    info = json.loads(client.ask(Code.GET_BROKER_CLUSTER_INFO).body)
    assert info["clusterAddrTable"] == {"DefaultCluster": ["broker-a"]}
    assert info["brokerAddrTable"]["broker-a"]["cluster"] == "DefaultCluster"
    all_topics = json.loads(client.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)["topicList"]
    assert {"TBW102", "BenchmarkTest"} <= set(all_topics)
    of_cluster = client.ask(Code.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"})
    assert json.loads(of_cluster.body)["topicList"] == all_topics
    assert json.loads(client.ask(Code.GET_TOPICS_BY_CLUSTER, {"cluster": "none"}).body)["topicList"] == []
    system = json.loads(client.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS).body)
    assert system["topicList"] == ["DefaultCluster", "broker-a"]
    assert system["brokerAddr"].startswith("127.0.0.1:")


def test_keys_and_values(client):
    """Written, read, listed and deleted."""
    fields = {"namespace": "ns", "key": "k", "value": "v"}
    assert client.ask(Code.PUT_KV_CONFIG, fields).code == ResponseCode.SUCCESS
    assert client.ask(Code.GET_KV_CONFIG, fields).ext_fields == {"value": "v"}
    assert json.loads(client.ask(Code.GET_KVLIST_BY_NAMESPACE, fields).body) == {"table": {"k": "v"}}
    assert client.ask(Code.DELETE_KV_CONFIG, fields).code == ResponseCode.SUCCESS
    assert client.ask(Code.GET_KV_CONFIG, fields).code == ResponseCode.QUERY_NOT_FOUND
    assert client.ask(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "other"}).code == ResponseCode.QUERY_NOT_FOUND
    assert client.ask(Code.DELETE_KV_CONFIG, {"namespace": "other", "key": "k"}).code == ResponseCode.SUCCESS


def test_the_order_of_topics_is_told_to_brokers(client):
    """It is a namespace of the same table."""
    client.ask(Code.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:8"})
    assert json.loads(register(client).body) == {"table": {"T": "broker-a:8"}}
    client.ask(Code.DELETE_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"})


def test_write_permission_of_a_broker_is_taken_and_given_back(shared, client):
    """Of each of its topics; the answer counts them."""
    answer = client.ask(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    count = shared.call(lambda: len(shared.broker.routes.topics))
    assert answer.ext_fields == {"wipeTopicCount": str(count)}
    assert route(client, "TBW102")["queueDatas"][0]["perm"] == 5
    answer = client.ask(Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert answer.ext_fields == {"addTopicCount": str(count)}
    assert route(client, "TBW102")["queueDatas"][0]["perm"] == 7
    assert client.ask(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "none"}).ext_fields == {"wipeTopicCount": "0"}


def test_another_broker_registers_and_goes(shared, client):
    """Its topics are routed to it until it says that it ends."""
    answer = register(client)
    assert answer.code == ResponseCode.SUCCESS
    found = route(client, "orders")
    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": "192.0.2.1:10911"}
    assert found["queueDatas"][0]["readQueueNums"] == 4
    group = client.ask(Code.GET_BROKER_MEMBER_GROUP, {"clusterName": "DefaultCluster", "brokerName": "other"})
    assert json.loads(group.body)["brokerMemberGroup"]["brokerAddrs"] == {"0": "192.0.2.1:10911"}
    assert client.ask(Code.UNREGISTER_BROKER, fields_of()).code == ResponseCode.SUCCESS
    assert route(client, "orders") is None
    # Once more: it is gone already.
    assert client.ask(Code.UNREGISTER_BROKER, fields_of()).code == ResponseCode.SUCCESS


def test_a_broker_is_dropped_with_its_connection(shared, client):
    """At once."""
    with shared.client() as other:
        register(other)
        assert route(client, "orders") is not None
    shared.reaches(lambda: "orders" not in shared.broker.routes.topics)
    assert route(client, "orders") is None


def test_a_silent_broker_is_dropped(shared, client):
    """After the time that it named itself; a heartbeat keeps it, and so does the question for changes."""
    register(client, heartbeatTimeoutMillis="50000")
    routes = shared.broker.routes

    def grow_older(seconds):
        routes.live["192.0.2.1:10911"].registered_at -= seconds
        routes.drop_silent()

    shared.call(lambda: grow_older(40))
    assert client.ask(Code.BROKER_HEARTBEAT, fields_of()).code == ResponseCode.SUCCESS
    shared.call(lambda: grow_older(40))
    version = json.loads(registration())["topicConfigSerializeWrapper"]["dataVersion"]
    answer = client.ask(Code.QUERY_DATA_VERSION, fields_of(), json.dumps(version).encode())
    assert answer.ext_fields == {"changed": "false"}
    assert json.loads(answer.body) == version
    shared.call(lambda: grow_older(40))
    assert route(client, "orders") is not None
    shared.call(lambda: grow_older(51))
    assert route(client, "orders") is None
    answer = client.ask(Code.QUERY_DATA_VERSION, fields_of(), json.dumps(version).encode())
    assert answer.ext_fields == {"changed": "true"}


def test_topics_are_taken_anew_when_their_version_has_changed(client):
    """Those that are gone lose their route."""
    register(client, registration(("a", "b"), 1))
    register(client, registration(("c",), 1))
    assert route(client, "a") is not None
    register(client, registration(("b", "c"), 2))
    assert (route(client, "a"), route(client, "b") is None, route(client, "c") is None) == (None, False, False)


def test_a_registration_without_body_keeps_the_topics(client):
    """It says that the broker lives."""
    register(client)
    assert register(client, b"").code == ResponseCode.SUCCESS
    assert route(client, "orders") is not None


def test_a_checksum_is_compared(client):
    """0 says that there is none."""
    body = registration()
    right = zlib.crc32(body) & 0x7FFFFFFF
    assert register(client, body, bodyCrc32=str(right)).code == ResponseCode.SUCCESS
    assert register(client, body, bodyCrc32="0").code == ResponseCode.SUCCESS
    answer = register(client, body, bodyCrc32=str(right ^ 1))
    assert (answer.code, answer.remark.partition(":")[0]) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")


def test_a_replica_learns_of_its_master(client):
    """It gets the master's address and HA address; a broker that comes back elsewhere replaces itself."""
    register(client)
    answer = register(client, b"", address="192.0.2.2:10911", broker_id=1)
    assert answer.ext_fields == {"haServerAddr": "192.0.2.1:10912", "masterAddr": "192.0.2.1:10911"}
    register(client, address="192.0.2.3:10911")
    assert route(client, "orders")["brokerDatas"][0]["brokerAddrs"] == {"0": "192.0.2.3:10911", "1": "192.0.2.2:10911"}


def test_one_topic_is_registered_over_the_connection_of_its_broker(shared, client):
    """A stranger's connection has no broker."""
    body = json.dumps({"queueDatas": [{"brokerName": "other", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]})
    register(client)
    assert client.ask(Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "new"}, body.encode()).code == ResponseCode.SUCCESS
    assert route(client, "new")["queueDatas"][0]["brokerName"] == "other"
    with shared.client() as stranger:
        answer = stranger.ask(Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "new"}, body.encode())
        assert answer.code == ResponseCode.SYSTEM_ERROR


def test_a_topic_is_dropped_from_the_routes(client):
    """Of one cluster, or of all."""
    register(client, registration(("a", "b")), cluster="DefaultCluster")
    client.ask(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "a", "clusterName": "other"})
    assert route(client, "a") is not None
    client.ask(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "a", "clusterName": "DefaultCluster"})
    client.ask(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "b"})
    assert (route(client, "a"), route(client, "b")) == (None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "broker-a"},
        {"name": "broker-a", "broker_id": -1},
        {"name": "broker-a", "broker_id": 1, "cluster": "other"},
        {"name": "broker-a", "broker_id": 1, "address": "own"},
        {"address": "own"},
        {"broker_id": -1},
        {"address": "nowhere"},
        {"address": "192.0.2.1:99999"},
        {"name": ""},
        {"name": "x" * 300},
        {"cluster": "../../etc"},
    ],
)
def test_a_registration_that_takes_the_place_of_the_broker_is_refused(shared, client, fields):
    """The routes to the broker beside the name server are its own."""
    own = f"127.0.0.1:{shared.address[1]}"
    if fields.get("address") == "own":
        fields = {**fields, "address": own}
    answer = register(client, **fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert route(client, "TBW102")["brokerDatas"][0]["brokerAddrs"] == {"0": own}
    assert route(client, "orders") is None


def test_a_slave_of_the_broker_beside_registers_under_its_name(shared, client):
    """It is told where its master is, and clients where it is. The topics, and their queues, stay the master's."""
    own = f"127.0.0.1:{shared.address[1]}"
    before = route(client, "TBW102")
    slave = {"name": "broker-a", "broker_id": 1, "address": "192.0.2.1:10911"}
    answer = register(client, **slave)
    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext_fields["masterAddr"] == own
    found = route(client, "TBW102")
    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": own, "1": "192.0.2.1:10911"}
    assert found["queueDatas"] == before["queueDatas"]
    assert route(client, "orders") is None
    body = json.dumps({"queueDatas": [{"brokerName": "broker-a", "readQueueNums": 2, "writeQueueNums": 2, "perm": 4}]})
    client.ask(Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "TBW102"}, body.encode())
    assert route(client, "TBW102")["queueDatas"] == before["queueDatas"]
    client.ask(Code.UNREGISTER_BROKER, fields_of(**slave))
    assert route(client, "TBW102") == before


def test_the_broker_beside_cannot_be_unregistered(shared, client):
    """By no request of the network."""
    own = f"127.0.0.1:{shared.address[1]}"
    client.ask(Code.UNREGISTER_BROKER, fields_of(name="broker-a", address=own))
    assert route(client, "TBW102") is not None


@pytest.mark.parametrize("code", [Code.REGISTER_BROKER, Code.QUERY_DATA_VERSION, Code.REGISTER_TOPIC_IN_NAMESRV])
@pytest.mark.parametrize("body", [b"x", b"[1]", b'{"counter":"x","queueDatas":[1]}', b"[" * 100_000, b"\xff"])
def test_a_body_that_is_none_is_refused(client, code, body):
    """With code 1; the connection goes on."""
    register(client)
    if code == Code.REGISTER_BROKER and body.startswith(b'{"counter"'):
        body = b'{"topicConfigSerializeWrapper":7}'
    answer = client.ask(code, {**fields_of(), "topic": "T"}, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


@pytest.mark.parametrize(
    "code",
    [
        Code.PUT_KV_CONFIG,
        Code.GET_KV_CONFIG,
        Code.DELETE_KV_CONFIG,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.REGISTER_BROKER,
        Code.UNREGISTER_BROKER,
        Code.QUERY_DATA_VERSION,
        Code.BROKER_HEARTBEAT,
        Code.GET_BROKER_MEMBER_GROUP,
        Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.GET_ROUTEINFO_BY_TOPIC,
        Code.GET_TOPICS_BY_CLUSTER,
        Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.DELETE_TOPIC_IN_NAMESRV,
    ],
)
def test_a_missing_field_is_named(client, code):
    """As RocketMQ says it."""
    answer = client.ask(code)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("the custom field <")


def test_keys_and_values_have_a_limit(shared, client, monkeypatch):
    """In all; what is deleted or replaced counts no longer."""
    monkeypatch.setattr("reput.namesrv.name_server.KV_SIZE_MAX", 100)
    fields = {"namespace": "ns", "key": "k", "value": "v" * 97}
    for _ in range(3):
        assert client.ask(Code.PUT_KV_CONFIG, fields).code == ResponseCode.SUCCESS
    answer = client.ask(Code.PUT_KV_CONFIG, {**fields, "key": "other"})
    assert (answer.code, answer.remark) == (1, "keys and values take too much memory: kv_size_max=100")
    client.ask(Code.DELETE_KV_CONFIG, fields)
    assert client.ask(Code.PUT_KV_CONFIG, {**fields, "key": "o"}).code == ResponseCode.SUCCESS
    client.ask(Code.DELETE_KV_CONFIG, {**fields, "key": "o"})
    assert shared.call(lambda: shared.broker.name_server.kv_size) == 0


def test_brokers_and_their_topics_have_a_limit(shared, client, monkeypatch):
    """In all; those of the broker beside the name server count, and are never refused."""
    rows = shared.call(lambda: shared.broker.routes.row_count)
    monkeypatch.setattr("reput.namesrv.route_info_manager.ROWS_MAX", rows + 2)
    assert register(client, registration(("a", "b"))).code == ResponseCode.SUCCESS
    answer = register(client, registration(("c",)), name="third", address="192.0.2.3:10911")
    assert answer.remark == f"brokers have registered too many topics: rows_max={rows + 2}"
    client.ask(Code.UNREGISTER_BROKER, fields_of())
    assert shared.call(lambda: shared.broker.routes.row_count) == rows
    monkeypatch.setattr("reput.namesrv.route_info_manager.BROKERS_MAX", 2)
    assert register(client).code == ResponseCode.SUCCESS
    assert register(client).code == ResponseCode.SUCCESS
    assert register(client, name="third", address="192.0.2.3:10911").code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("name", ["configStorePath", "kvConfigPath", "rocketmqHome", "productEnvName", "listenPort"])
def test_no_request_writes_a_file_of_the_name_server(client, tmp_path, name):
    """CVE-2023-37582: a path that a request sets is a file that the next request writes."""
    target = tmp_path / "owned"
    answer = client.ask(Code.UPDATE_NAMESRV_CONFIG, body=f"{name}={target}\nproductEnvName=x".encode())
    assert answer.code not in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY)
    assert not target.exists()
    shown = client.ask(Code.GET_NAMESRV_CONFIG).body
    assert b"Path" not in shown
    assert b"Home" not in shown
