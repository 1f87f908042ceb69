"""Fuzzes each reader of foreign formats, from the corpus beside it, with address and undefined behaviour sanitizers."""

import pathlib

import pytest

from checking import equal
from mounting import BUILD, run

pytestmark = [pytest.mark.builds("fuzz"), pytest.mark.long]

HERE = pathlib.Path(__file__).parent
SECONDS = 60
MOST_MEMORY = 1024  # MiB, of which sanitizers take the most
MOST_ALLOCATED = 128  # MiB at once
SLOWEST = 10  # seconds for one input
CORPORA = sorted((HERE / "corpus").iterdir())


def test_each_fuzzer_has_a_corpus():
    fuzzers = {path.stem.removesuffix("_fuzzer") for path in HERE.glob("*_fuzzer.cc")}
    equal({corpus.name for corpus in CORPORA}, fuzzers, "corpora")


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda corpus: corpus.name)
def test_fuzz(corpus, scratch):
    limits = (f"-max_total_time={SECONDS}", f"-timeout={SLOWEST}", f"-rss_limit_mb={MOST_MEMORY}",
              f"-malloc_limit_mb={MOST_ALLOCATED}", "-max_len=32768")
    found = scratch / "found"
    found.mkdir()
    fuzzer = BUILD / "fuzz" / f"{corpus.name}_fuzzer"
    run(fuzzer, *limits, "-print_final_stats=1", f"-artifact_prefix={scratch}/", found, corpus)
