"""Settings: their sources, their precedence, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Unpack, get_type_hints

import msgspec
import pytest

from golden_sets import CLEAN_SETS, PART_SETS
from reput.embedded import opening
from reput.embedded.open_keywords import OpenKeywords
from reput.errors import ConfigError
from reput.replication import following
from reput.replication.follow_keywords import FollowKeywords
from reput.settings import Settings, given_settings, load_settings
from reput.settings.java_properties import parse_properties
from reput.settings.keywords import SettingKeywords
from reput.settings.known_names import ROCKETMQ_NAMES
from reput.settings.spelling import FIELDS, TLS_SPELLING, snake_case


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return a file of that name with that text."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_file


def test_without_any_source_rocketmq_s_defaults_hold():
    """No configuration is required, and no setting counts as explicit."""
    loaded = load_settings()
    assert loaded.settings == Settings()
    assert loaded.unused == ()
    assert loaded.explicit == frozenset()
    assert loaded.settings.mapped_file_size_commit_log == 1073741824
    assert loaded.settings.mapped_file_size_consume_queue == 6000000
    assert loaded.settings.index_file_size == 420000040
    assert loaded.settings.flush_disk_type == "ASYNC_FLUSH"
    assert loaded.settings.dispatchers == ("consume_queue", "index")


@pytest.mark.parametrize(
    ("rocketmq", "field"),
    [
        ("flushDiskType", "flush_disk_type"),
        ("brokerIP1", "broker_ip1"),
        ("checkCRCOnRecover", "check_crc_on_recover"),
        ("enabledAppendPropCRC", "enabled_append_prop_crc"),
        ("warmMapedFileEnable", "warm_maped_file_enable"),
        ("osPageCacheBusyTimeOutMills", "os_page_cache_busy_time_out_mills"),
        ("mapperFileSizeBatchConsumeQueue", "mapper_file_size_batch_consume_queue"),
        ("dLegerGroup", "d_leger_group"),
        ("useABSLock", "use_abs_lock"),
        # From RocketMQ 5.5.
        ("commitLogRecoverMaxNum", "commit_log_recover_max_num"),
        ("minLiteTTl", "min_lite_t_tl"),
    ],
)
def test_names_have_two_spellings(rocketmq: str, field: str):
    """RocketMQ's spelling, including mistakes, or the same in snake case."""
    assert rocketmq in ROCKETMQ_NAMES
    assert snake_case(rocketmq) == field


@pytest.mark.parametrize("name", ["maxMessageSize", "max_message_size"])
def test_every_source_takes_either_spelling(name: str, write: Callable[[str, str], Path]):
    """A name means the same in every source."""
    assert load_settings(write("a.toml", f"{name} = 100")).settings.max_message_size == 100
    assert load_settings(write("a.properties", f"{name}=100")).settings.max_message_size == 100
    assert load_settings(assignments=[f"{name}=100"]).settings.max_message_size == 100
    assert load_settings(**{name: 100}).settings.max_message_size == 100


def test_names_of_rocketmq_keep_their_defaults():
    """Every field above reput's own is a name that a broker knows."""
    fields = list(Settings.__struct_fields__)
    rocketmq = fields[: fields.index("store_host")]
    assert {snake_case(name) for name in ROCKETMQ_NAMES} | set(TLS_SPELLING) >= set(rocketmq)


def test_names_of_tls_have_dots_as_in_rocketmq(write: Callable[[str, str], Path]):
    """In TOML they may be a table."""
    for given in (
        load_settings(write("a.toml", '[tls.server]\nmode = "enforcing"\ncertPath = "/a.pem"')),
        load_settings(write("a.properties", "tls.server.mode=enforcing\ntls.server.certPath=/a.pem")),
        load_settings(assignments=["tls.server.mode=enforcing", "tls_server_cert_path=/a.pem"]),
    ):
        assert given.settings.tls_server_mode == "enforcing"
        assert given.settings.tls_server_cert_path == "/a.pem"


def test_a_file_as_guides_print_it_is_read(write: Callable[[str, str], Path]):
    """With the names that RocketMQ has not had for long, and passes over, and with the ends of lines of Windows."""
    text = """#所属集群名字\r
        brokerClusterName=rocketmq-cluster\r
        mapedFileSizeCommitLog=1073741824\r
        mapedFileSizeConsumeQueue=300000\r
        storePathConsumeQueue=/data/store/consumequeue\r
        storePathIndex=/data/store/index\r
        storeCheckpoint=/data/store/checkpoint\r
        abortFile=/data/store/abort\r
        #checkTransactionMessageEnable=false\r
        sendMessageThreadPoolNums=128\r
    """
    loaded = load_settings(write("broker.conf", text))
    assert loaded.settings.broker_cluster_name == "rocketmq-cluster"
    assert loaded.settings.mapped_file_size_commit_log == 1 << 30
    assert len(loaded.unused) == 7


def test_set_holds_over_config_over_record_over_default(write: Callable[[str, str], Path]):
    """Sources closer to the user override others."""
    config = write("reput.toml", "max_index_num = 300\nmax_hash_slot_num = 30\n")
    recorded = {"max_index_num": 200, "max_hash_slot_num": 20, "message_delay_level": "1s 1h"}
    loaded = load_settings(config, ["maxIndexNum=400"], recorded, changes=["max_index_num", "max_hash_slot_num"])
    assert loaded.settings.max_index_num == 400
    assert loaded.settings.max_hash_slot_num == 30
    assert loaded.settings.message_delay_level == "1s 1h"
    assert loaded.settings.default_query_max_num == 32
    assert loaded.explicit == {"max_index_num", "max_hash_slot_num"}


def test_another_value_than_the_recorded_one_is_refused(write: Callable[[str, str], Path]):
    """The meaning of a store's bytes stays the same, regardless of the configuration."""
    recorded = {"message_delay_level": "1s 1h", "enable_lmq": True}
    config = write("reput.toml", "messageDelayLevel = '1s  1h'\n")
    assert load_settings(config, recorded=recorded).settings.enable_lmq
    with pytest.raises(ConfigError, match="message_delay_level='1s 5s' recorded='1s 1h'") as caught:
        load_settings(config, ["message_delay_level=1s 5s"], recorded)
    assert "--change message_delay_level" in caught.value.advice
    with pytest.raises(ConfigError, match="enable_lmq=false recorded=true"):
        load_settings(config, recorded=recorded, changes=["message_delay_level"], enable_lmq=False)


def test_the_last_of_two_assignments_holds():
    """A longer command line overrides a shorter one."""
    assert load_settings(assignments=["maxIndexNum=4", "maxIndexNum=5"]).settings.max_index_num == 5


@pytest.mark.parametrize("name", [*CLEAN_SETS, *PART_SETS])
def test_the_broker_s_own_file_loads(name: str, broker_properties, golden_about):
    """The configuration of the broker that wrote a golden store also configures reput."""
    loaded = load_settings(broker_properties(name))
    told = golden_about(name)["brokerSettings"]
    assert loaded.settings.mapped_file_size_commit_log == told["mappedFileSizeCommitLog"]
    assert loaded.settings.max_hash_slot_num == told["maxHashSlotNum"]
    assert loaded.settings.max_index_num == told["maxIndexNum"]
    assert loaded.settings.transient_store_pool_enable is False
    assert loaded.settings.store_host == f"127.0.0.1:{told['listenPort']}"
    assert loaded.settings.enable_consume_queue_ext is (told["enableConsumeQueueExt"] == "true")
    assert set(loaded.unused) <= set(told)
    assert "traceTopicEnable" in loaded.unused


def test_names_that_only_rocketmq_uses_are_listed(write: Callable[[str, str], Path]):
    """Paths in a broker's file are replaced by the given store; ignored settings are listed."""
    config = write(
        "broker.conf", "storePathRootDir=/data\nhaMasterAddress=1\nmaxMessageSize=77\ntimer_wheel_enable=true\n"
    )
    loaded = load_settings(config)
    assert loaded.unused == ("storePathRootDir", "haMasterAddress", "timer_wheel_enable")
    assert loaded.settings.max_message_size == 77


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("maxMesageSize", "maxMessageSize"),
        ("max_mesage_size", "max_message_size"),
        ("warmMappedFileEnable", "warmMapedFileEnable"),
        ("mappedFileSizeComitLog", "mappedFileSizeCommitLog"),
        ("haListenPrt", "haListenPort"),
        ("ringsize", "ring_size"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, nearest: str, write: Callable[[str, str], Path]):
    """A misspelt setting is never ignored."""
    with pytest.raises(ConfigError, match=f"unknown setting: name={name} source=.*a.properties:2") as caught:
        load_settings(write("a.properties", f"# one\n{name}=1\n"))
    assert caught.value.advice == f"Did you mean {nearest}?"


def test_an_unknown_name_without_a_like_is_refused():
    """If no name is similar, none is suggested."""
    with pytest.raises(ConfigError, match="unknown setting: name=xyzzy") as caught:
        load_settings(xyzzy=1)
    assert "Neither reput nor RocketMQ" in caught.value.advice


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("maxMessageSize=many", "maxMessageSize takes a whole number from 1 to 2147483647: maxMessageSize=many"),
        ("maxMessageSize=1.5", "takes a whole number"),
        ("maxMessageSize=", "takes a whole number"),
        ("maxMessageSize=1_000", "takes a whole number"),
        ("maxMessageSize=0", "takes a whole number from 1"),
        ("maxMessageSize=2147483648", "takes a whole number from 1 to 2147483647"),
        ("max_index_num=1", "max_index_num takes a whole number from 2"),
        ("mappedFileSizeCommitLog=-1", "takes a whole number"),
        ("longPollingEnable=yes", "longPollingEnable takes true or false: longPollingEnable=yes"),
        ("flushDiskType=SYNC", "flushDiskType takes one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("messageDelayLevel=1s 5x", "message_delay_level takes numbers with s, m, h or d"),
        ("deleteWhen=25", "delete_when takes hours"),
        ("maxHashSlotNum=2147483647", "an index file of these numbers exceeds 2 GiB"),
        ("ring_size=100000", "ring_size takes a power of two"),
        ("dispatcher_backoff_max=1", "dispatcher_backoff_max is below"),
        ("brokerIP1=a..b", "no host of this name is known: broker_ip1='a..b'"),
        ("store_host=::1:5", "store_host takes ADDRESS:PORT"),
        ("store_host=127.0.0.1", "store_host takes ADDRESS:PORT"),
        ("born_host=127.0.0.1:65536", "born_host takes ADDRESS:PORT"),
        ("dispatchers=index,index", "a dispatcher is named twice: dispatchers='index'"),
        ("dispatchers=../index", "a dispatcher's name has letters"),
        ("dispatchers.index=3", "an option of a dispatcher is written dispatchers.NAME.OPTION: dispatchers.index=3"),
        ("dispatchers.a/b.c=3", "an option of a dispatcher is written dispatchers.NAME.OPTION"),
        ("dispatchers.lake.topics=[", "dispatchers.lake.topics is neither text nor a TOML array"),
        ("dispatcher_options=3", "unknown setting: name=dispatcher_options"),
        ("=3", "--set takes NAME=VALUE"),
        ("maxMessageSize", "--set takes NAME=VALUE: --set='maxMessageSize'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(assignment: str, sentence: str):
    """The error names the setting, the accepted values, and the given value."""
    with pytest.raises(ConfigError) as caught:
        load_settings(assignments=[assignment])
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_message_size", "100"),
        ("max_message_size", True),
        ("long_polling_enable", 1),
        ("broker_name", 5),
        ("dispatchers", "index"),
        ("dispatchers", [1]),
        ("flush_disk_type", None),
    ],
)
def test_what_has_a_type_is_not_converted(name: str, value: object):
    """A text where Python or TOML has a number type is a mistake."""
    with pytest.raises(ConfigError, match=f"{name} takes .* source=keyword argument"):
        load_settings(**{name: value})


def test_one_setting_in_two_spellings_is_refused(write: Callable[[str, str], Path]):
    """It would be ambiguous."""
    config = write("a.toml", "maxMessageSize = 1\nmax_message_size = 2\n")
    with pytest.raises(ConfigError, match="in two spellings: maxMessageSize max_message_size"):
        load_settings(config)


def test_dispatchers_may_be_a_list(write: Callable[[str, str], Path]):
    """A list is enough without options; RocketMQ's switches follow it."""
    loaded = load_settings(write("a.toml", 'dispatchers = ["consume_queue"]'))
    assert loaded.settings.dispatchers == ("consume_queue",)
    assert loaded.settings.message_index_enable is False
    assert loaded.explicit == {"dispatchers"}


def test_dispatchers_have_options_in_tables(write: Callable[[str, str], Path]):
    """Options reach the plugin as they were written; --set replaces one of them and leaves the others."""
    config = write(
        "a.toml",
        """
        [dispatchers]
        enabled = ["consume_queue", "lake"]
        [dispatchers.lake]
        target = "/lake"
        files = {size = 3}
        [spark]
        master = "local[2]"
        sql.session.timeZone = "UTC"
        ui.enabled = false
        """,
    )
    loaded = load_settings(config, ["dispatchers.lake.target=/other", 'dispatchers.lake.topics=["a"]', "spark.x=1"])
    assert loaded.settings.dispatchers == ("consume_queue", "lake")
    assert loaded.settings.dispatcher_options == {
        "lake": {"target": "/other", "files": {"size": 3}, "topics": ["a"]},
    }
    assert loaded.settings.spark_options == {
        "spark.master": "local[2]",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.x": "1",
    }
    assert loaded.explicit == {"dispatchers", "dispatcher_options", "spark_options"}


def test_a_properties_file_says_the_same_with_dots(write: Callable[[str, str], Path]):
    """A broker's file can also hold reput's settings."""
    config = write(
        "a.conf", "dispatchers = consume_queue, lake\ndispatchers.lake.target = /lake\nspark.master: local\n"
    )
    settings = load_settings(config).settings
    assert settings.dispatchers == ("consume_queue", "lake")
    assert settings.dispatcher_options == {"lake": {"target": "/lake"}}
    assert settings.spark_options == {"spark.master": "local"}


def test_a_section_names_the_plugin_that_it_is_made_by(write: Callable[[str, str], Path]):
    """That is not an option of the plugin; `--set` and Python work the same way."""
    config = write("a.toml", '[dispatchers.orders_hook]\nplugin = "http_sink"\nurl = "/orders"\n')
    settings = load_settings(config, ["dispatchers.x.plugin=http_sink"], **{"dispatchers.y.plugin": "words"}).settings
    assert settings.dispatcher_plugins == {"orders_hook": "http_sink", "x": "http_sink", "y": "words"}
    assert settings.dispatcher_options == {"orders_hook": {"url": "/orders"}}
    with pytest.raises(ConfigError, match=r"dispatchers\.x\.plugin takes the name of an installed dispatcher: .*=3"):
        load_settings(**{"dispatchers.x.plugin": 3})


def test_python_gives_the_same_tables():
    """`reput.open(path, dispatchers={...})` is the TOML table as a dictionary."""
    settings = load_settings(dispatchers={"enabled": ["lake"], "lake": {"target": "/lake"}}).settings
    assert settings.dispatchers == ("lake",)
    assert settings.dispatcher_options == {"lake": {"target": "/lake"}}


def test_message_index_enable_is_a_dispatcher_s_switch(write: Callable[[str, str], Path]):
    """A view that a broker's file switches off is not built; a later source overrides an earlier one."""
    config = write("a.properties", "messageIndexEnable=false")
    assert load_settings(config).settings.dispatchers == ("consume_queue",)
    assert load_settings(config, ["message_index_enable=true"]).settings.dispatchers == ("consume_queue", "index")
    loaded = load_settings(config, ["dispatchers=index"])
    assert loaded.settings.dispatchers == ("index",)
    assert loaded.settings.message_index_enable is True


def test_hosts_follow_the_broker_s_address():
    """Records carry the broker's listen address, unless a host is given."""
    settings = load_settings(broker_ip1="::1", listen_port=5).settings
    assert settings.store_host == "[::1]:5"
    assert settings.born_host == "[::1]:5"
    settings = load_settings(broker_ip1="localhost", listen_port=5).settings
    assert settings.broker_ip1 == "localhost"
    assert settings.store_host == "127.0.0.1:5"
    settings = load_settings(store_host="10.0.0.1:7", born_host="[fe80::1]:0").settings
    assert settings.store_host == "10.0.0.1:7"
    assert settings.born_host == "[fe80::1]:0"


def test_the_queue_file_size_is_rounded_up_to_whole_units():
    """Like in RocketMQ."""
    assert load_settings(mapped_file_size_consume_queue=6001).settings.mapped_file_size_consume_queue == 6020


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_a_configuration_that_cannot_be_read_is_named(name: str, tmp_path: Path):
    """The error has the path and the reason."""
    with pytest.raises(ConfigError, match=r"the configuration cannot be read: config=.* reason="):
        load_settings(tmp_path / name)


@pytest.mark.parametrize("data", [b"a = ", b"\xff = 1", b"a.b = 1\na.b = 2"])
def test_toml_that_is_none_is_named(data: bytes, tmp_path: Path):
    """With its path and the position of the mistake."""
    path = tmp_path / "a.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"the configuration is not TOML: config=.*a\.toml reason="):
        load_settings(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", [("a", "1", 1)]),
        ("a = 1 ", [("a", "1 ", 1)]),
        ("a:1", [("a", "1", 1)]),
        ("a 1", [("a", "1", 1)]),
        ("a\t=\t1", [("a", "1", 1)]),
        ("a", [("a", "", 1)]),
        ("a=", [("a", "", 1)]),
        ("a==1", [("a", "=1", 1)]),
        ("# a=1\n! b=2\n\n  \t\n  c=3", [("c", "3", 5)]),
        ("a=1\r\nb=2\rc=3", [("a", "1", 1), ("b", "2", 2), ("c", "3", 3)]),
        ("a=1,\\\n    2,\\\n\t3\nb=4", [("a", "1,2,3", 1), ("b", "4", 4)]),
        ("a=1\\\\\nb=2", [("a", "1\\", 1), ("b", "2", 2)]),
        ("a=1\\", [("a", "1", 1)]),
        ("a=x\\\n# no comment", [("a", "x# no comment", 1)]),
        ("a\\ b\\=c\\:d = e", [("a b=c:d", "e", 1)]),
        ("a=\\t\\n\\r\\f\\q", [("a", "\t\n\r\fq", 1)]),
        ("a=\\u00e9\\u4e2d\\uD83D\\uDE00", [("a", "é中😀", 1)]),
        ("a=1\na=2", [("a", "1", 1), ("a", "2", 2)]),
    ],
)
def test_the_syntax_of_a_properties_file_is_java_s(text: str, expected: list[tuple[str, str, int]]):
    """Comments, separators, continuations, escapes."""
    assert parse_properties(text.encode("iso-8859-1")) == expected


def test_a_broken_escape_is_refused(write: Callable[[str, str], Path]):
    """Java also refuses it; the error has the line."""
    with pytest.raises(ConfigError, match=r"four hex digits: .* line=2 config=.*a\.conf"):
        load_settings(write("a.conf", "a=1\nb=\\u12g4\n"))


def test_the_names_of_fields_are_unambiguous():
    """No two fields have the same name."""
    assert len(set(FIELDS)) == len(FIELDS)


def test_a_configuration_without_end_is_refused():
    """Reading a device stops at the largest possible size of a configuration."""
    with pytest.raises(ConfigError, match="config=/dev/zero"):
        load_settings(Path("/dev/zero"))


def test_every_setting_is_a_keyword_of_open_for_editors():
    """With its type; the list of dispatchers is a separate argument, and options with dots are given one by one."""
    keywords = get_type_hints(SettingKeywords)
    assert keywords.pop("spark") == Mapping[str, str]
    settings = get_type_hints(Settings)
    for name in ("dispatchers", "dispatcher_options", "dispatcher_plugins", "spark_options"):
        del settings[name]
    assert keywords == settings


def test_a_settings_object_gives_the_fields_that_differ_from_their_defaults():
    """Other fields come from the configuration. Settings with dots are kept, too."""
    given = Settings(
        flush_disk_type="SYNC_FLUSH",
        dispatchers=("consume_queue", "sink"),
        dispatcher_options={"sink": {"url": "http://localhost"}},
        dispatcher_plugins={"sink": "http_sink"},
        spark_options={"spark.master": "local[2]"},
    )
    loaded = load_settings(None, (), None, (), None, **given_settings(given)).settings
    assert loaded == msgspec.structs.replace(given, message_index_enable=False)
    assert given_settings(Settings()) == {}
    assert given_settings(loaded) == {**given_settings(given), "message_index_enable": False}


def test_every_argument_of_follow_is_a_keyword_for_editors():
    """With its type: `follow` documents them, and `afollow` takes them from a list."""
    arguments = get_type_hints(
        following.follow, {**vars(following), "SettingKeywords": SettingKeywords, "Unpack": Unpack}
    )
    for name in ("master", "path", "keywords", "return"):
        del arguments[name]
    keywords = get_type_hints(FollowKeywords)
    assert {name: keywords[name] for name in keywords.keys() - get_type_hints(SettingKeywords).keys()} == arguments


def test_every_argument_of_open_is_a_keyword_for_editors():
    """With its type: `open` documents them, and the overloads of `open` and `aopen` take them from one list."""
    arguments = get_type_hints(opening.open, {**vars(opening), "SettingKeywords": SettingKeywords})
    for name in ("path", "read_only", "keywords", "return"):
        del arguments[name]
    keywords = get_type_hints(OpenKeywords)
    assert {name: keywords[name] for name in keywords.keys() - get_type_hints(SettingKeywords).keys()} == arguments
