"""Verdicts: what is better than what, with standard errors, and which metrics have no goal."""

import json
import math

import pytest
import scipy.stats

from bert_jax.errors import UserError
from bert_jax.metric_names import has_goal, titles_of
from bert_jax.objectives import replaced_tokens
from bert_jax.reporting import measures
from bert_jax.reporting.status import describe
from bert_jax.tasks import tagging
from bert_jax.training.selection import SelectionConfig
from tests.reporting.test_report import text_of
from tests.reporting.test_report_tasks import write_tuned

# The discriminator always says "original", and 14.9 % of the tokens are replaced.
BLIND = {
    "mlm_accuracy": 0.058, "mlm_loss": 6.483, "perplexity": 654.1, "replaced_accuracy": 0.851, "replaced_loss": 0.42096,
    "replaced_precision": 0.0, "replaced_rate": 0.149, "replaced_recall": 0.0,
}  # fmt: skip
ENTROPY = float(scipy.stats.entropy([0.149, 0.851]))  # 0.4208


def test_a_discriminator_that_finds_nothing_is_told_so():
    titles = measures.titles_in({"titles": titles_of(replaced_tokens.Objective)})
    lines = measures.comparison_lines(measures.in_order(BLIND, titles), {}, "more")
    assert lines == [
        f"held-out replaced loss 0.421: no better than entropy of the replaced share {ENTROPY:.3f}",
        "held-out replaced precision 0.000 with recall 0.000: 0.149 worse than replaced share 0.149",
        "held-out replaced accuracy 0.851: no better than majority rate 0.851",
        "more",
    ]
    leading = ["replaced_loss", "replaced_precision", "replaced_recall", "replaced_accuracy", "mlm_accuracy"]
    assert measures.headline_metrics({"step": 1, "split": "eval", "time": 0.0, **BLIND}, False, None, titles) == leading


def test_the_line_of_an_evaluation_has_the_parts_of_one_metric():
    """Of two parts or more; what an evaluation adds under its name is no part."""
    found = {"nsp_loss": 0.7, "nsp_loss/both": 0.7, "mlm_loss": 2.5, "mlm_loss/both": 2.0, "mlm_loss/left": 3.0}
    found |= {"mlm_accuracy": 0.5, "mlm_accuracy/both": 0.6, "mlm_accuracy/left": 0.4, "probe/accuracy": 0.9}
    assert measures.in_a_line(found) == (
        "nsp loss 0.700, mlm loss 2.500 (both 2.000, left 3.000), mlm accuracy 0.500, probe/accuracy 0.900"
    )


@pytest.mark.parametrize(("share", "accuracy"), [(0.149, 0.851), (0.7, 0.7), (0.5, 0.5), (0.0, 1.0)])
def test_what_the_share_of_replaced_tokens_gives(share, accuracy):
    known = measures.with_shares({"unigram_cross_entropy": 6.0}, {"replaced_rate": share, "replaced_rate/legal": 0.25})
    expected = float(scipy.stats.entropy([share, 1 - share]))
    assert dict(measures.known_baselines("replaced_loss", known)) == {
        "entropy of the replaced share": pytest.approx(expected)
    }
    assert dict(measures.known_baselines("replaced_accuracy", known)) == {"majority rate": accuracy}
    [(_, of_part)] = measures.known_baselines("replaced_loss/legal", known)
    assert of_part == pytest.approx(float(scipy.stats.entropy([0.25, 0.75])))
    assert measures.known_baselines("mlm_loss", known) == [("unigram", 6.0)]
    assert measures.with_shares({}, {"replaced_rate": None}) == {}


def test_a_discriminator_that_finds_some_is_better():
    found = {**BLIND, "replaced_loss": 0.3, "replaced_precision": 0.7, "replaced_recall": 0.4, "replaced_accuracy": 0.9}
    lines = measures.comparison_lines(found, {}, "more")
    assert "held-out replaced loss 0.300: 0.121 better than entropy of the replaced share 0.421" in lines
    assert "held-out replaced precision 0.700 with recall 0.400: 0.551 better than replaced share 0.149" in lines
    assert "more" not in lines


WITHIN = "within two standard errors"


def spread(share, number):
    return math.sqrt(share * (1 - share) / number)


@pytest.mark.parametrize(
    ("value", "baselines", "error", "said", "colour"),
    [
        # 0.615 of 100 rows is 2.4 standard errors from chance, of 50 rows 1.7
        (0.615, {"chance_rate": 0.5}, spread(0.615, 100), "0.115 better than chance 0.500", "good"),
        (0.615, {"chance_rate": 0.5}, spread(0.615, 50), f"0.115 above chance 0.500, {WITHIN}", "doubt"),
        # a majority rate is an estimate too: 1.65 standard errors of both
        (
            0.615,
            {"majority_rate": 0.5, "majority_rate_standard_error": 0.05},
            spread(0.615, 100),
            f"0.115 above majority rate 0.500, {WITHIN}",
            "doubt",
        ),
        (0.385, {"chance_rate": 0.5}, spread(0.385, 100), "0.115 worse than chance 0.500", "bad"),
        (0.47, {"chance_rate": 0.5}, 0.05, f"0.030 below chance 0.500, {WITHIN}", "doubt"),
        (0.5, {"chance_rate": 0.5}, 0.05, "no better than chance 0.500", "bad"),
        (0.9, {"chance_rate": 0.5}, None, "0.400 above chance 0.500", ""),
    ],
)  # fmt: skip
def test_better_is_more_than_two_standard_errors(value, baselines, error, said, colour):
    errors = {} if error is None else {"accuracy": error}
    assert measures.compare_score("accuracy", value, baselines, errors) == (said, colour)
    shown = "" if error is None else f" ± {error:.3f}"
    lines = measures.comparison_lines({"accuracy": value}, baselines, "cure", None, errors)
    assert lines[0] == f"held-out accuracy {value:.3f}{shown}: {said}"
    assert ("cure" in lines) == (colour in ("bad", "doubt"))


def test_losses_are_compared_the_other_way_round():
    baselines = {"mean_label_loss": 1.0, "mean_label_loss_standard_error": 0.1}
    assert (
        measures.compare_score("loss", 0.5, baselines, {"loss": 0.1})[0]
        == "0.500 better than loss of the mean label 1.000"
    )
    assert measures.compare_score("loss", 0.8, baselines, {"loss": 0.1})[1] == "doubt"
    assert measures.compare_score("spearmanr", 0.3, {}, {"spearmanr": 0.2})[1] == "doubt"
    assert measures.compare_score("pearson", 0.3, {}, {"pearson": 0.1}) == (
        "0.300 better than a constant answer 0.000",
        "good",
    )


def test_errors_have_the_names_of_an_evaluation():
    assert measures.heldout_errors({"dev": {"f1": 0.1}, "test": {"f1": 0.2}}) == {"f1": 0.1}
    several = measures.heldout_errors({"dev_a": {"f1": 0.3}, "dev_b": {"f1": 0.4}})
    assert several == {"f1/dev_a": 0.3, "f1/dev_b": 0.4, "f1": pytest.approx(0.25)}  # of the mean: 0.5 / 2
    tasks = {"x/dev": {"accuracy": 0.1}, "y/dev_a": {"f1": 0.3}, "y/dev_b": {"f1": 0.4}, "y/test": {"f1": 1.0}}
    expected = {"x/accuracy": 0.1, "y/f1/dev_a": 0.3, "y/f1/dev_b": 0.4, "y/f1": pytest.approx(0.25)}
    assert measures.heldout_errors(tasks) == expected
    assert measures.heldout_errors({}) == {}


def test_a_step_0_that_is_not_beaten_is_said():
    before = {"accuracy": 0.6, "loss": 0.3, "replaced_rate": 0.2}
    lines = measures.comparison_lines({"accuracy": 0.55}, {}, "more", before, {"accuracy": 0.01}, "accuracy")
    assert lines == ["held-out accuracy 0.550 ± 0.010 (0.600 at step 0: training did not help)"]
    assert measures.comparison_lines({"loss": 0.2}, {}, "more", before, None, "loss") == [
        "held-out loss 0.200 (0.300 at step 0)"
    ]


def test_a_share_is_no_goal():
    assert not has_goal("replaced_rate")
    assert not has_goal("replaced_rate/legal")
    assert not has_goal("squad/HasAns_total")
    assert has_goal("accuracy")
    assert has_goal("total_loss")
    with pytest.raises(UserError, match=r"config\.selection\.metric is 'replaced_rate', of which more is neither"):
        SelectionConfig("replaced_rate")


def test_the_main_metric_leads_tags():
    names = [*titles_of(tagging.Task)]
    assert names.index("f1") < names.index("accuracy")
    lines = measures.comparison_lines(
        {"accuracy": 0.9, "f1": 0.4}, {"majority_rate": 0.85}, "more", None, {"f1": 0.0125, "accuracy": 0.003}, "f1"
    )
    assert lines == [
        "held-out f1 0.400 ± 0.013",
        "held-out accuracy 0.900 ± 0.003: 0.050 better than majority rate 0.850",
    ]


def test_report_and_status_show_errors(tmp_path):
    write_tuned(tmp_path)
    details = json.loads((tmp_path / "details.json").read_text())
    details["splits"]["dev"]["standard_errors"] = {"accuracy": 0.125}
    (tmp_path / "details.json").write_text(json.dumps(details))
    results = json.loads((tmp_path / "results.json").read_text()) | {"standard_errors": {"dev": {"accuracy": 0.125}}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    text = " ".join(text_of(tmp_path)[0].split())
    assert "Accuracy, held-out 0.800 ± 0.125 0.200 above majority rate 0.600, within two standard errors" in text
    assert "0.800 ± 0.125 majority rate 0.600" in text, "in the table of scores"
    assert describe(tmp_path).splitlines()[-1] == "dev      accuracy 0.800 ± 0.125, loss 0.600"


def test_a_table_of_results_knows_no_best_share(tmp_path):
    begin = {"step": 0, "split": "eval", "time": 0.0, **BLIND, "replaced_rate": 0.15, "nsp_accuracy": 0.5}
    lines = [begin, {**begin, "step": 10, "time": 9.0, "replaced_rate": 0.149}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "run.json").write_text(json.dumps({"titles": titles_of(replaced_tokens.Objective)}))
    text = " ".join(text_of(tmp_path)[0].split())
    assert "Share of tokens that are replaced 0.150 0.149 – –" in text
    assert "nsp accuracy 0.500 0.500 before training" in text
    assert "Discriminator: loss, nats, held-out 0.421 no better than entropy of the replaced share 0.421" in text
