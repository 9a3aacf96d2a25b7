"""The published clients of other services, against a real server."""

import pytest

from served import running_server

SENTENCE = "the old boat sings"
KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def expected(served_models):
    return served_models["translator"].translate(SENTENCE, max_len_b=12).text


@pytest.fixture(scope="module")
def locked(served_models):
    models = [served_models["translator"], served_models["language_model"]]
    with running_server(models, names=("en-de", "lm"), keys=[KEY]) as running:
        yield running


# -- LibreTranslate

@pytest.fixture
def libre():
    return pytest.importorskip("libretranslatepy", reason="libretranslatepy is not installed").LibreTranslateAPI


def test_libretranslates_client_translates_detects_and_lists(libre, live, expected):
    client = libre(live.url)
    assert client.translate(SENTENCE, "a", "b") == expected
    assert client.detect(SENTENCE) == [{"language": "a", "confidence": 0.0}]
    assert client.languages() == [{"code": "a", "name": "a", "targets": ["b"]}]


def test_libretranslates_client_brings_its_key(libre, locked, expected):
    client = libre(locked.url, api_key=KEY)
    assert client.translate(SENTENCE, "en", "de") == expected
    assert client.languages()[0]["name"] == "English"
    with pytest.raises(Exception, match="403"):
        libre(locked.url, api_key="another-key-of-some-length").translate(SENTENCE, "en", "de")
    with pytest.raises(Exception, match="403"):
        libre(locked.url).languages()


# -- DeepL

@pytest.fixture
def deepl(monkeypatch):
    deepl = pytest.importorskip("deepl", reason="deepl is not installed")
    monkeypatch.setattr(deepl.http_client, "max_network_retries", 0)
    return deepl


def test_deepls_client_translates_one_text_and_several(deepl, locked, expected):
    client = deepl.DeepLClient(KEY, server_url=locked.url)
    found = client.translate_text(SENTENCE, target_lang="DE")
    assert (found.text, found.detected_source_lang, found.billed_characters) == (expected, "EN", len(SENTENCE))
    several = client.translate_text([SENTENCE, "", "a bird"], source_lang="EN", target_lang="DE")
    assert [own.text for own in several][:2] == [expected, ""]
    assert [own.billed_characters for own in several] == [len(SENTENCE), 0, 6]


def test_deepls_client_lists_languages_and_usage(deepl, locked, served_models):
    client = deepl.DeepLClient(KEY, server_url=locked.url)
    assert [(own.code, own.name) for own in client.get_source_languages()] == [("EN", "English")]
    assert [own.code for own in client.get_target_languages()] == ["DE"]
    before = client.get_usage().character
    client.translate_text("a bird", target_lang="DE")
    after = client.get_usage().character
    assert after.count == before.count + 6
    assert after.limit > after.count
    assert not client.get_usage().any_limit_reached


@pytest.mark.parametrize("target", ["EN-US", "EN-GB"])
def test_deepls_client_names_targets_with_a_country(deepl, served_models, expected, target):
    with running_server([served_models["translator"]], names=("ro-en",)) as running:
        client = deepl.DeepLClient(KEY, server_url=running.url)
        assert client.translate_text(SENTENCE, target_lang=target).text == expected
        assert {own.code for own in client.get_target_languages()} == {"EN-GB", "EN-US"}


def test_deepls_client_sends_our_own_fields(deepl, locked, served_models):
    client = deepl.DeepLClient(KEY, server_url=locked.url)
    small = served_models["translator"].prune(encoder=1, decoder=1)
    found = client.translate_text(SENTENCE, target_lang="DE", extra_body_parameters={"depth": {"encoder": 1, "decoder": 1},
                                                                                     "beam": 2})
    assert found.text == small.translate(SENTENCE, beam=2, max_len_b=12).text


def test_deepls_client_hears_what_is_wrong(deepl, locked):
    with pytest.raises(deepl.AuthorizationException):
        deepl.DeepLClient("another-key-of-some-length", server_url=locked.url).translate_text("a", target_lang="DE")
    client = deepl.DeepLClient(KEY, server_url=locked.url)
    with pytest.raises(deepl.DeepLException, match="no model translates into 'FR'"):
        client.translate_text("a bird", target_lang="FR")
    with pytest.raises(deepl.DeepLException, match="tag_handling is not supported"):
        client.translate_text("a <b>bird</b>", target_lang="DE", tag_handling="html")
    with pytest.raises(deepl.DeepLException, match="glossary_id is not supported"):
        client.translate_text("a bird", source_lang="EN", target_lang="DE", glossary="some-glossary")
    with pytest.raises(deepl.DeepLException, match="formality is not supported"):
        client.translate_text("a bird", target_lang="DE", formality="more")


def test_deepls_api_takes_forms(locked, expected):
    status, _, found = locked.ask("/v2/translate", form={"text": [SENTENCE, "a bird"], "target_lang": "DE"},
                                  headers={"Authorization": f"DeepL-Auth-Key {KEY}"})
    assert status == 200
    assert found["translations"][0]["text"] == expected
    assert len(found["translations"]) == 2


# -- OpenAI

@pytest.fixture
def openai():
    return pytest.importorskip("openai", reason="openai is not installed")


@pytest.fixture
def writer(openai, live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openais_client_completes_greedily(writer, served_models):
    found = writer.completions.create(model="lm", prompt="the old", temperature=0, max_tokens=5)
    whole = served_models["language_model"].generate("the old", beam=1, max_len_b=5).text
    assert (found.object, found.model, len(found.choices)) == ("text_completion", "lm", 1)
    assert found.id.startswith("cmpl-")
    assert "the old" + found.choices[0].text == whole
    assert found.choices[0].finish_reason in ("stop", "length")
    assert found.usage.prompt_tokens == 2
    assert found.usage.total_tokens == 2 + found.usage.completion_tokens


def test_openais_client_streams_the_same_text(writer):
    options = {"model": "lm", "prompt": ["the old", "a small"], "temperature": 0.9, "seed": 3, "max_tokens": 8}
    whole = writer.completions.create(**options)
    texts, reasons, usage = {0: "", 1: ""}, {}, None
    for event in writer.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        usage = event.usage or usage
        for choice in event.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    assert [texts[0], texts[1]] == [choice.text for choice in whole.choices]
    assert [reasons[0], reasons[1]] == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage


def test_openais_client_asks_for_several_and_stops(writer):
    several = writer.completions.create(model="lm", prompt="the", n=3, seed=1, max_tokens=6)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    greedy = writer.completions.create(model="lm", prompt="the", temperature=0, max_tokens=6).choices[0].text
    word = greedy.split()[-1]
    stopped = writer.completions.create(model="lm", prompt="the", temperature=0, max_tokens=6, stop=word).choices[0]
    assert stopped.text == greedy[: greedy.index(word)]
    assert stopped.finish_reason == "stop"
    echoed = writer.completions.create(model="lm", prompt="the", temperature=0, max_tokens=6, echo=True, logprobs=0).choices[0]
    assert echoed.text == "the" + greedy
    assert len(echoed.logprobs.tokens) == len(echoed.logprobs.token_logprobs) > 0
    assert all(score <= 0 for score in echoed.logprobs.token_logprobs)


def test_openais_client_lists_models_and_hears_what_is_wrong(openai, writer, locked):
    assert [model.id for model in writer.models.list()] == ["lm"]
    assert writer.models.retrieve("lm").id == "lm"
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        writer.completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError, match="presence_penalty is not supported"):
        writer.completions.create(model="lm", prompt="a", presence_penalty=0.5)
    with pytest.raises(openai.BadRequestError, match="there is no field 'topp'"):
        writer.completions.create(model="lm", prompt="a", extra_body={"topp": 0.5})
    with (openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong-key-of-some-length", max_retries=0) as client,
          pytest.raises(openai.AuthenticationError, match="a key is needed")):
        client.completions.create(model="lm", prompt="a")
