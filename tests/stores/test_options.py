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


@pytest.mark.parametrize(
    "key",
    [
        "azure_storage_access_key",
        "azure_storage_master_key",
        "aws_sse_customer_key_base64",
        "google_service_account_key",
        "fs.s3a.secret.key",
        "fs.s3a.bucket.landing.secret.key",
        "fs.azure.account.key.acme.dfs.core.windows.net",
        "fs.azure.account.oauth2.client.secret.acme.dfs.core.windows.net",
        "fs.azure.sas.container.acme",
    ],
)
def test_option_when_its_key_is_of_a_secret_then_its_value_is_refused_and_its_place_is_taken(key: str):
    with pytest.raises(StoreUnusable, match="is a secret") as refused:
        parse([f"{key}=hunter2"], {})
    assert "hunter2" not in str(refused.value)
    assert parse([f"{key}=env:NOT_SET"], {}).words() == [f"{key}=env:NOT_SET"]


def test_option_when_its_url_has_a_user_then_it_is_a_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PROXY", "http://me:hunter2@proxy:3128")
    assert parse(["proxy_url=env:PROXY"], {}).values() == {"proxy_url": "http://me:hunter2@proxy:3128"}
    for word in ("proxy_url=http://me:hunter2@proxy:3128", "aws_endpoint=https://me:hunter2@store"):
        with pytest.raises(StoreUnusable, match="is a secret"):
            parse([word], {})
    plain = [
        "aws_sse_kms_key_id=k",
        "aws_web_identity_token_file=/run/token",
        "azure_fabric_token_service_url=http://f",
    ]
    assert parse(plain, {}).words() == plain


def test_options_of_a_store_when_others_are_there_then_it_is_told_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("S3_SECRET", "hunter2")
    before = current()
    use(parse([*OPTIONS, "google_service_account=/key.json"], {}))
    try:
        of_all = {"allow_http", "max_retries", "retry_timeout"}
        assert set(delta_options("s3://bucket/lake") or {}) == {"aws_region", "aws_secret_access_key", *of_all}
        assert set(delta_options("hdfs://name/lake") or {}) == {"dfs.replication", *of_all}
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
