"""The claims of the two pages: each number from its raw data, each published figure with a verdict."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path

import pytest

import simulate
from report import claims as claims_module
from report import published
from report.claims import BY_CONSTRUCTION, CLOSE, KINDS, NOT_ATTEMPTED, REPRODUCED, VERDICTS, read
from report.measures import Number
from scripts import claims, local_cluster, reproduce
from utils import EXIT_OK, EXIT_SETUP, SetupError

ROOT = Path(__file__).resolve().parents[1]
KNOWN = read()
PAGES = {page: (ROOT / page).read_text() for page in dict.fromkeys(part.page for part in KNOWN.parts.values())}
lines_of = cache(claims_module.lines_of)
# What has digits in a page's own words, and is no result: names, versions, publications.
NAMES = [
    r"ResNet-\d+(?:-v\d)?|LeNet-5|Inception-v\d|MobileNet-v\d|CIFAR-\d+|x86_64|H1 to H3|NVIDIA P4",
    r"Python 3\.\d+ to 3\.\d+|MXNet 1\.9\.1",
    r"(?:TSC|NIPS|ICML|AISTATS|SoCC|ICDCS|Computing 121,|al\.,) \d{4}|\b103092\b",
]


# ------------------------------------------------------------------------------------------------ each row


MEASURED = [claim for claim in KNOWN.claims if claim.measured]
TOLD = [(claim.name, told) for claim in KNOWN.claims for told in claim.numbers]
JUDGED = [told for _, told in TOLD if told.published]
# Numbers in the words of a sentence that were published.
PUBLISHED = {"esync-ssgd": {"2", "27"}, "switch-headline": {"3.8"}}
SETTING = {"0.80", "0.85", "0.87", "120", "150", "10", "300", "3", "1", "2"}  # targets, lengths, ratios, setups


def found(told):
    source = KNOWN.sources[told.source]
    return claims_module.recompute(told, source.form, lines_of(source))


def test_names_are_unique_and_parts_sources_and_verdicts_are_known():
    names = [claim.name for claim in KNOWN.claims]
    assert len(names) == len(set(names))
    assert all(claim.part in KNOWN.parts and claim.numbers for claim in KNOWN.claims)
    for name, told in TOLD:
        assert bool(told.published) == (told.verdict in VERDICTS), name
        assert told.of or told.verdict == NOT_ATTEMPTED, name  # what was measured is recomputed
        assert not told.of or KNOWN.sources[told.source].kind in KINDS, name


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim.name)
def test_each_number_is_recomputed_from_its_raw_data(claim):
    for told in claim.measured:
        assert found(told).number == told.number, f"{told.of} {dict(told.arguments)}"


def test_a_number_that_no_function_recomputes_is_refused():
    with pytest.raises(SetupError, match="no function recomputes 'magic' from comparison"):
        claims_module.recompute(dataclasses.replace(MEASURED[0].measured[0], of="magic"), "comparison", [])


@pytest.mark.parametrize("claim", KNOWN.claims, ids=lambda claim: claim.name)
def test_each_number_of_a_sentence_is_one_that_is_recomputed(claim):
    """Beside them stand the targets that they were computed with, and what was published."""
    shown = re.findall(r"\{(\d)[^}]*\}", claim.text)
    assert {*map(int, shown)} == set(range(len(claim.numbers)))
    own = without_names(re.sub(r"\{\d[^}]*\}|`[^`]*`", "", claim.text))
    for number in re.findall(r"\d[\d.]*\d|\d", own):
        assert number in SETTING | PUBLISHED.get(claim.name, set()), f"{number} of {claim.name} is not recomputed"


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim.name)
def test_what_makes_a_claim_again_is_a_command(claim):
    for told in claim.measured:
        for line in () if KNOWN.sources[told.source].command else found(told).lines:
            program, *words = line.command
            assert program in ("simulate.py", "scripts/local_cluster.sh")
            if program == "simulate.py":
                assert simulate.parse(words)[1]
            else:
                local_cluster.parse(words)


# ------------------------------------------------------------------------------------------- published figures


def test_each_published_figure_has_one_verdict():
    judged = [told.published for told in JUDGED]
    assert sorted(judged) == sorted(published.figures())


def test_the_figures_of_the_tables_are_among_those_that_need_a_verdict():
    figures = published.figures()
    assert figures["alexnet, speed-up"] == "27"
    assert figures["dcasgd, computing, GPUs; CPUs"] == "0.02 to 0.43; 0.53"
    assert figures["Sync-Switch 1, time of switched"] == "0.195"
    assert len(figures) == len(published.NETWORKS) * 2 + len(published.RESNET18) * 6 + len(published.HEADLINES) + 8


@pytest.mark.parametrize("told", [told for told in JUDGED if told.of], ids=lambda told: told.published)
def test_a_number_that_reproduces_a_published_one_is_near_it(told):
    texts = published.figures()[told.published], told.number.number
    theirs, ours = (max(map(float, re.findall(r"\d+\.?\d*", text))) if re.search(r"\d", text) else 0 for text in texts)
    is_near = ours == pytest.approx(theirs, rel=CLOSE)
    assert is_near or told.verdict not in (REPRODUCED, BY_CONSTRUCTION)


# ------------------------------------------------------------------------------------------------- the pages


def without_names(text):
    for names in NAMES:
        text = re.sub(names, "", text)
    return text


def test_the_pages_have_what_the_claims_say():
    for page, text in claims.written(KNOWN).items():
        assert page.read_text() == text, "run .venv/bin/python -m scripts.claims"


@pytest.mark.parametrize("page", PAGES)
def test_no_number_of_a_page_stands_outside_its_claims(page):
    text = re.sub(r"<!-- claims: (\w+) -->.*?<!-- end of claims: \1 -->", "", PAGES[page], flags=re.DOTALL)
    text = re.sub(r"^    .*$|`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[|\*", "", without_names(text))
    lines = [line for line in text.splitlines() if re.search(r"\d", line)]
    setting = {"results/README.md": ["0.85 (on  to 0.80)"]}  # the targets of the table that decides
    assert [line for line in lines if not any(each in line for each in setting.get(page, ()))] == []


def test_the_page_of_results_is_short():
    assert len(PAGES["results/README.md"].splitlines()) <= 150


# ------------------------------------------------------------------------------------------------ made again


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        (Number("74", "64 to 80", 5), Number("79", "60 to 90", 5), True),
        (Number("74", "64 to 80", 5), Number("95", "60 to 99", 5), False),
        (Number("8.2"), Number("8.9"), True),
        (Number("8.2"), Number("9.2"), False),
        (Number("-", n=5, reached=0), Number("-", n=5, reached=0), True),
        (Number("-", n=5, reached=0), Number("70", "60 to 90", 5), False),
    ],
)
def test_numbers_agree_that_are_within_the_interval_or_near(then, now, same):
    assert claims.agree(then, now) == same


def test_the_list_has_every_claim_with_its_cost(capsys):
    assert reproduce.main(["--list"]) == EXIT_OK
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["claim", "minutes", "MB"]
    assert [line.split()[0] for line in lines] == [claim.name for claim in KNOWN.claims]


def test_a_claim_that_is_not_there_is_told():
    with pytest.raises(SetupError, match="there is no claim 'x'"):
        reproduce.main(["x"])


@pytest.mark.parametrize("words", [["esync-ssgd", "--quick"], ["esync-ssgd", "--list"], ["esync-ssgd", "--only", "a"]])
def test_a_claim_takes_no_other_choice(words, capsys):
    with pytest.raises(SystemExit) as error:
        reproduce.parse(words)
    assert error.value.code == EXIT_SETUP
    assert "a claim is made again as it was" in capsys.readouterr().err
