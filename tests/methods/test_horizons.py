"""Moving averages stated as horizons in steps: what they become, and what contradicts them."""

import pytest

from fewmask.errors import ConfigError
from fewmask.methods.mean_teacher import MeanTeacherSettings
from fewmask.methods.rml import RMLSettings
from fewmask.settings import read_section, resolve
from tests.miniature import make_method


def test_a_horizon_takes_the_place_of_its_factor():
    settings = RMLSettings(decay_horizon=250, momentum_horizon=1000)
    assert (settings.decay, settings.momentum) == (0.996, 0.999)
    assert MeanTeacherSettings(decay_horizon=200).decay == 0.995
    assert (RMLSettings().decay, RMLSettings().momentum) == (0.999, 0.9999)  # without one, as given
    assert RMLSettings(decay=0.9).decay == 0.9


@pytest.mark.parametrize("kind", [RMLSettings, MeanTeacherSettings])
def test_settings_that_were_read_can_be_read_again(kind):
    settings = kind(decay_horizon=250)
    assert kind(**settings.model_dump()) == settings


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (RMLSettings, {"decay": 0.99, "decay_horizon": 250}),
        (RMLSettings, {"decay": 0.999, "decay_horizon": 250}),  # also where the value given is the default
        (RMLSettings, {"momentum": 0.99, "momentum_horizon": 1000}),
        (MeanTeacherSettings, {"decay": 0.99, "decay_horizon": 250}),
    ],
)
def test_a_factor_beside_a_horizon_is_refused(kind, values):
    factor, horizon = values
    with pytest.raises(ConfigError, match=f"{factor}=.* and {horizon}=.* contradict") as caught:
        read_section(kind, values)
    assert f"settings.{horizon}=none" in caught.value.fix


def test_none_on_the_command_line_undoes_a_presets_horizon():
    words = ["decay_horizon=none", "settings.decay=0.9", "temperature=none"]
    config = resolve({"settings": {"decay_horizon": 250, "temperature": 2.0}}, words=words)
    settings = read_section(RMLSettings, config.settings)
    assert (settings.decay, settings.decay_horizon, settings.temperature) == (0.9, None, None)


@pytest.mark.parametrize("horizon", [0, -5, "many"])
def test_a_horizon_is_a_number_of_steps(horizon):
    with pytest.raises(ConfigError, match="decay_horizon cannot be"):
        read_section(RMLSettings, {"decay_horizon": horizon})


def test_methods_say_what_they_average():
    rml = make_method("rml", decay_horizon=250, momentum_horizon=1000)
    assert [(each.what, each.factor) for each in rml.moving_averages()] == [("teachers", 0.996), ("prototypes", 0.999)]
    assert make_method("rml", warmup=True).moving_averages()[0].start_left(1) == 0.0
    assert len(make_method("mean_teacher").moving_averages()) == 1
    assert make_method("supervised").moving_averages() == ()


def test_a_horizon_below_one_is_a_share_of_the_steps_that_the_last_layer_leaves():
    layers = ({"settings": {"decay_horizon": 0.1, "momentum_horizon": 0.4}, "training": {"steps": 4000}},)
    assert resolve(*layers).settings == {"decay_horizon": 400, "momentum_horizon": 1600}
    assert resolve(*layers, words=["steps=500", "settings.momentum_horizon=70"]).settings == {
        "decay_horizon": 50,
        "momentum_horizon": 70,
    }
    assert resolve(*layers, words=["steps=3"]).settings["decay_horizon"] == 1
    assert layers[0]["settings"]["decay_horizon"] == 0.1  # layers are left as they were


@pytest.mark.parametrize("kind", [RMLSettings, MeanTeacherSettings])
def test_complete_settings_name_every_switch_and_can_be_changed_by_either_word(kind):
    given = kind(decay_horizon=250, dropout=0.25)
    complete = given.complete()
    assert set(complete) == set(kind.model_fields) - {"decay"}
    assert kind(**complete) == given
    assert kind(**complete | {"decay_horizon": 100}).decay == 0.99
    assert kind(**complete | {"decay_horizon": None, "decay": 0.9}).decay == 0.9
