"""From presets, files and key=value words to settings."""

import pytest
import yaml
from pydantic import Field

from fewmask.config import Config, Section
from fewmask.errors import ConfigError
from fewmask.methods.rml_settings import RMLSettings
from fewmask.settings import list_presets, parse_word, preset, read_section, read_settings_file, resolve, spelled_out
from fewmask.training.learners import baseline_config


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("views.crop=256x320", {"views": {"crop": [256, 320]}}),
        ("optimizer.lr=1e-4", {"optimizer": {"lr": 1e-4}}),
        ("optimizer.lr=2.5E-3", {"optimizer": {"lr": 2.5e-3}}),
        ("views.scale=0.5,1.5", {"views": {"scale": [0.5, 1.5]}}),
        ("views.scale=[0.5, 1.5]", {"views": {"scale": [0.5, 1.5]}}),
        ("loss.class_weights=1e-1,2,3", {"loss": {"class_weights": [0.1, 2, 3]}}),
        ("views.flip=false", {"views": {"flip": False}}),
        ("network.options={depths: [1, 1]}", {"network": {"options": {"depths": [1, 1]}}}),
        ("network.options.depths=[1, 1]", {"network": {"options": {"depths": [1, 1]}}}),
        ("network.pretrained=a=b.pt", {"network": {"pretrained": "a=b.pt"}}),
        ("network.pretrained=none", {"network": {"pretrained": "none"}}),
        ("learners.b.network.pretrained=a,b.pt", {"learners": {"b": {"network": {"pretrained": "a,b.pt"}}}}),
        ("training.cache=640x480", {"training": {"cache": "640x480"}}),
        ("training.cache='640,480'", {"training": {"cache": "640,480"}}),
        ("training.cache=none", {"training": {"cache": None}}),
        ("data.split=0123", {"data": {"split": "0123"}}),  # YAML's octal 83
        ("data.split=[a] b: c.txt", {"data": {"split": "[a] b: c.txt"}}),
        ("optimizer.head_lr=none", {"optimizer": {"head_lr": None}}),
        ("crop=none", {"views": {"crop": None}}),
        ("steps=500", {"training": {"steps": 500}}),
        ("seed=3", {"seed": 3}),
        ("decay=0.99", {"settings": {"decay": 0.99}}),
        ("settings.dropout=0.5", {"settings": {"dropout": 0.5}}),
    ],
)
def test_a_word_becomes_a_setting(word, expected):
    assert parse_word(word) == expected


def test_numbers_and_shares_of_labels_are_read_from_words_and_files(tmp_path):
    assert resolve(words=["labels=46"]).data.labels == "46"
    assert resolve(words=["data.labels=1/8"]).data.labels == "1/8"
    path = tmp_path / "settings.yaml"
    path.write_text("data:\n  labels: 46\noptimizer:\n  lr: 1e-4\n")
    config = resolve(read_settings_file(path))
    assert (config.data.labels, config.optimizer.lr) == ("46", 1e-4)


def test_a_list_of_one_is_a_number(tmp_path):
    config = resolve(words=["data.ignore=7", "optimizer.milestones=0.5", "loss.class_weights=2", "network.std=0.5"])
    assert (config.data.ignore, config.optimizer.milestones) == ((7,), (0.5,))
    assert (config.loss.class_weights, config.network.std) == ((2.0,), (0.5,))
    assert read_section(RMLSettings, parse_word("settings.p0_scales=1.5")["settings"]).p0_scales == (1.5,)
    path = tmp_path / "settings.yaml"
    path.write_text("data: {ignore: 7}\n")
    assert resolve(read_settings_file(path)).data.ignore == (7,)


def test_none_in_a_file_is_what_it_is_in_a_word():
    """A value of its own where there is one, else no value."""
    read = spelled_out({"network": {"pretrained": "none"}, "crop": "none", "cache": "640x480"}, (), "settings.yaml")
    assert read == {"network": {"pretrained": "none"}, "views": {"crop": None}, "training": {"cache": "640x480"}}
    assert resolve(read).network.pretrained == "none"


def test_later_layers_win_key_by_key(tmp_path):
    """Preset, file, options, words: each changes what it names and nothing else."""
    path = tmp_path / "settings.yaml"
    path.write_text("training: {steps: 70, batch: 6}\nsettings: {decay: 0.9, threshold: 0.1}\n")
    layers = ({"training": {"steps": 60, "batch": 5, "keep": 3}, "seed": 1}, read_settings_file(path), {"seed": 2})
    config = resolve(*layers, words=["steps=80", "settings.threshold=0.2"])
    assert (config.training.keep, config.training.batch, config.training.steps) == (3, 6, 80)
    assert config.seed == 2
    assert config.settings == {"decay": 0.9, "threshold": 0.2}
    assert layers[0]["training"]["steps"] == 60  # layers are left as they were


def rates(*layers, words=()):
    """Those of the run and of both learners' baselines: name, rate, head's rate, weight decay."""
    config = resolve(*layers, words=words)
    baselines = [baseline_config(config, f"student_{number}", 0) for number in (1, 2)]
    settings = [each.optimizer for each in (config, *baselines)]
    return [(each.name, each.lr, each.head_lr, each.weight_decay) for each in settings]


SGD, SGD_BEFORE = ("sgd", 0.005, 0.005, 5e-4), ("sgd", 0.01, 0.1, 5e-4)
ADAMW = ("adamw", 1e-4, None, 5e-4)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), [SGD, SGD_BEFORE, SGD_BEFORE]),
        (("optimizer.name=sgd",), [SGD, SGD_BEFORE, SGD_BEFORE]),
        (("optimizer.name=adamw",), [ADAMW, ADAMW, ADAMW]),
        (("optimizer.lr=0.02", "optimizer.name=adamw"), [("adamw", 0.02, None, 5e-4)] * 3),
        (("optimizer.name=adamw", "baseline.optimizer.lr=0.02"), [ADAMW, *[("adamw", 0.02, None, 5e-4)] * 2]),
        (("baseline.optimizer.name=adamw",), [SGD, ADAMW, ADAMW]),
        (("optimizer.name=adamw", "baseline.optimizer.name=sgd"), [ADAMW, SGD_BEFORE, SGD_BEFORE]),
        (("learners.student_2.optimizer.name=adamw",), [SGD, SGD_BEFORE, ADAMW]),
        (("learners.student_2.baseline.optimizer.name=adamw",), [SGD, SGD_BEFORE, ADAMW]),
    ],
)
def test_another_optimizer_has_none_of_a_presets_rates(words, expected):
    assert rates(preset("general"), words=words) == expected


def test_rates_in_a_file_belong_to_the_optimizer_that_it_names(tmp_path):
    named = {"optimizer": {"name": "sgd", "lr": 0.3}, "learners": {"student_2": {"optimizer": {"lr": 0.4}}}}
    assert rates(named, words=["optimizer.name=adamw"]) == [ADAMW, ADAMW, ADAMW]
    bare = {"optimizer": {"lr": 0.3}}  # speaks of whichever it is
    assert rates(preset("general"), bare, words=["optimizer.name=adamw"])[0] == ("adamw", 0.3, None, 5e-4)
    ran = resolve(preset("general"), words=["optimizer.name=adamw", "optimizer.lr=0.3"])
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(ran.model_dump(mode="json")))
    assert resolve(read_settings_file(path)) == ran
    assert resolve(preset("general"), read_settings_file(path)) == ran
    assert rates(read_settings_file(path), words=["optimizer.name=sgd"])[0] == ("sgd", 0.01, None, 5e-4)


def test_a_learners_baseline_has_the_optimizer_of_all_baselines_before_that_of_the_run():
    file = {"optimizer": {"name": "sgd"}, "learners": {"student_2": {"baseline": {"optimizer": {"lr": 0.3}}}}}
    file |= {"baseline": {"optimizer": {"name": "sgd"}}}
    own = ("sgd", 0.3, None, 5e-4)
    assert rates(file)[2] == own
    assert rates(file, words=["baseline.optimizer.name=adamw"])[1:] == [ADAMW, ADAMW]  # 0.3 was for sgd
    assert rates(file, words=["optimizer.name=adamw"])[2] == own


def test_a_preset_for_adamw_keeps_its_rates():
    own = [("adamw", 0.01, 0.01, 0.01), *[("adamw", 0.004, 0.004, 0.01)] * 2]
    assert rates(preset("demo")) == rates(preset("demo"), words=["optimizer.name=adamw"]) == own


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_is_valid_and_names_itself(name):
    config = resolve(preset(name))
    assert config.preset == name
    assert config != Config(preset=name)


def test_a_key_of_both_a_section_and_the_method_must_be_spelled_out():
    with pytest.raises(ConfigError, match="could mean several") as caught:
        resolve(words=["momentum=0.9"], method_keys={"momentum", "threshold"})
    assert caught.value.fix == "optimizer.momentum or settings.momentum"
    assert resolve(words=["threshold=0.9"], method_keys={"threshold"}).settings == {"threshold": 0.9}


@pytest.mark.parametrize(
    ("word", "what", "fix"),
    [
        ("batch=4", "'batch' could mean several", "training.batch or evaluation.batch"),
        ("training.stepz=4", "unknown setting 'training.stepz'", "did you mean training.steps"),
        ("trianing.steps=4", "unknown setting 'trianing.steps'", "did you mean training.steps"),
        ("steps=many", "training.steps cannot be 'many'", "a valid integer (optimizer steps)"),
        ("steps=0", "training.steps cannot be 0", "greater than 0 (optimizer steps)"),
        ("dropout_kind=0.5", "network.dropout_kind cannot be 0.5", "'channel' or 'element'"),
        ("steps", "'steps' is not a setting", "key=value"),
        ("=4", "'=4' is not a setting", "key=value"),
        ("lr=[1,", "not readable as YAML", "key=value"),
    ],
)
def test_a_word_that_cannot_be_used_says_what_would_be_valid(word, what, fix):
    with pytest.raises(ConfigError) as caught:
        resolve(words=[word])
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_an_unknown_method_setting_finds_the_key_of_another_section():
    """A word without a section and without a match goes to the method, which must not leave the user there."""

    class Own(Section):
        threshold: float = Field(0.5, description="own")

    for word, suggestion in (("stpes=4", "training.steps"), ("thresold=0.1", "threshold")):
        with pytest.raises(ConfigError, match="unknown setting") as caught:
            read_section(Own, parse_word(word)["settings"])
        assert f"did you mean {suggestion}" in caught.value.fix
    with pytest.raises(ConfigError) as caught:
        read_section(Own, {"zzzzzz": 1})
    assert caught.value.fix == "threshold"


def test_yaml_builds_no_objects(tmp_path):
    mark = tmp_path / "harmed"
    text = f"!!python/object/apply:os.mkdir ['{mark}']"
    path = tmp_path / "settings.yaml"
    path.write_text(f"seed: {text}\n")
    with pytest.raises(ConfigError, match="not readable as YAML") as caught:
        read_settings_file(path)
    assert str(path) in caught.value.where
    with pytest.raises(ConfigError, match="not readable as YAML"):
        parse_word(f"seed={text}")
    assert not mark.exists()


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words", "{broken"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings_file(path)
    assert caught.value.fix == "key: value lines"


def test_a_missing_file_or_preset_says_what_there_is(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        read_settings_file(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="no preset 'camvit'") as caught:
        preset("camvit")
    assert "camvid" in caught.value.fix


def test_settings_cannot_be_changed_once_read():
    with pytest.raises(ValueError, match="frozen"):
        resolve().training.steps = 5
