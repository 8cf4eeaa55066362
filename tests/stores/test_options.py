import pickle
from pathlib import Path

import pytest
from menura.stores.opening import open_store
from menura.stores.options import current, delta_options, parse, use
from menura.stores.store import StoreUnusable

OPTIONS = ["aws_region=eu-central-1", "aws_secret_access_key=env:S3_SECRET", "allow_http=true", "dfs.replication=2"]


def test_secrets_when_options_are_shown_then_only_their_places_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("S3_SECRET", "hunter2")
    token = tmp_path / "token"
    token.write_text("opensesame\n")
    options = parse([*OPTIONS, f"aws_session_token=file:{token}"], {})
    carried = options.carried()
    assert not any(word in f"{options!r}{carried!r}{options.words()}" for word in ("hunter2", "opensesame"))
    monkeypatch.delenv("S3_SECRET")
    token.unlink()
    values = pickle.loads(pickle.dumps(carried)).values()
    assert (values["aws_secret_access_key"], values["aws_session_token"]) == ("hunter2", "opensesame")
    with pytest.raises(StoreUnusable, match="env:S3_SECRET holds nothing"):
        options.values()


def test_options_when_the_environment_has_some_too_then_the_words_count_more():
    options = parse(["aws_region=b"], {"AWS_REGION": "a", "AWS_SECRET_ACCESS_KEY": "x", "AWS_PROFILE": "p"})
    assert sorted(options.words()) == ["aws_region=b", "aws_secret_access_key=env:AWS_SECRET_ACCESS_KEY"]


@pytest.mark.parametrize(
    "word", ["aws_region", "=x", "aws_region=", "region=x", "nosuch_key=1", "aws_session_token=abc"]
)
def test_option_when_it_is_none_then_it_is_refused_without_its_value(word: str):
    with pytest.raises(StoreUnusable) as refused:
        parse([word], {})
    assert "abc" not in str(refused.value)


def test_options_of_a_store_when_others_are_there_then_it_is_told_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("S3_SECRET", "hunter2")
    before = current()
    use(parse([*OPTIONS, "google_service_account=/key.json"], {}))
    try:
        assert set(delta_options("s3://bucket/lake") or {}) == {"aws_region", "aws_secret_access_key", "allow_http"}
        assert delta_options("hdfs://name/lake") == {"dfs.replication": "2", "allow_http": "true"}
        assert delta_options("/srv/lake") is None
    finally:
        use(before)


@pytest.mark.parametrize(
    ("url", "option", "said"),
    [
        ("nosuch://bucket", "allow_http=true", "scheme nosuch"),
        ("s3://bucket", "aws_nosuch=1", "aws_nosuch"),
        ("s3://bucket", "max_retries=many", "max_retries"),
    ],
)
def test_address_when_nothing_can_open_it_then_it_says_why(url: str, option: str, said: str):
    with pytest.raises(StoreUnusable, match=said):
        open_store(url, parse([option], {}))
