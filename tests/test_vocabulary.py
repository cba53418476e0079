"""What a draft may hold: the frequent ids, the text's own, and those of the clusters nearest to the state."""

from __future__ import annotations

from copy import copy

import mlx.core as mx
import numpy as np
import pytest

from mtp_mlx.backbone import Backbone
from mtp_mlx.drafters import vocabulary
from mtp_mlx.drafters.vocabulary import CLUSTER, CentroidVocabulary, DraftVocabulary, by_cluster, make_vocabulary

IDS = mx.array(np.random.default_rng(1).permutation(4000)[:1200], mx.int32)
FREQUENT = 240
NOWHERE = sorted(set(range(4096)) - set(np.array(IDS).tolist()))[:3]
OWN = [*NOWHERE, *np.array(IDS)[[2, 700, 900]].tolist()]  # a prompt: of no list, frequent, in clusters


@pytest.fixture(scope="module")
def centroids(tiny: Backbone) -> CentroidVocabulary:
    ids, frequent = by_cluster(IDS, tiny, frequent=FREQUENT)
    made = make_vocabulary(ids, tiny, frequent=frequent)
    assert isinstance(made, CentroidVocabulary)
    made.start(OWN)
    return made


@pytest.fixture(scope="module")
def whole(tiny: Backbone) -> DraftVocabulary:
    made = make_vocabulary(IDS, tiny, frequent=None)
    made.start(OWN)
    return made


def states(count: int) -> list[mx.array]:
    return list(mx.random.normal((count, 64), key=mx.random.key(3)))


def found(drafts: DraftVocabulary, y: mx.array) -> tuple[int, float]:
    id, probability = drafts.best(y)
    assert id.shape == (1,)
    return int(id[0]), float(probability)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 100, 960, 1200])
def test_order_keeps_every_id_and_the_frequent_ones_in_front(tiny: Backbone, size: int):
    ids, frequent = by_cluster(IDS[:size], tiny, frequent=FREQUENT)
    assert sorted(np.array(ids).tolist()) == sorted(np.array(IDS[:size]).tolist())
    assert np.array_equal(np.array(ids[:frequent]), np.array(IDS[:frequent]))
    assert min(FREQUENT, size) <= frequent < FREQUENT + CLUSTER
    assert (size - frequent) % CLUSTER == 0


def test_ids_of_a_cluster_have_rows_that_point_alike(tiny: Backbone):
    """Two groups of rows around opposite directions are never in one cluster."""
    ids, frequent = by_cluster(IDS, tiny, frequent=FREQUENT)
    rows = np.array(tiny.output_rows(ids[frequent:]))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    def spread(rows: np.ndarray) -> float:
        return float(np.linalg.norm(rows.reshape(-1, CLUSTER, 64).mean(axis=1), axis=1).mean())

    assert spread(rows) > 1.2 * spread(np.random.default_rng(0).permutation(rows))


def test_with_every_cluster_near_the_answer_is_the_whole_vocabularys(centroids, whole, monkeypatch):
    monkeypatch.setattr(vocabulary, "NEAREST", 1000)
    for y in states(20):
        (id, probability), (expected, share) = found(centroids, y), found(whole, y)
        assert id == expected
        assert probability == pytest.approx(share, rel=1e-4)  # the text's own ids are counted once


def test_candidates_are_the_frequent_ids_the_texts_own_and_the_near_clusters(centroids, whole, monkeypatch):
    monkeypatch.setattr(vocabulary, "NEAREST", 2)
    always = {*np.array(IDS[:FREQUENT]).tolist(), *OWN}
    clusters = np.array(centroids._cluster_ids)
    centres = np.array(centroids._centroids)
    for y in states(50):
        near = clusters[np.argsort(-(centres @ np.array(y)))[:2]]
        candidates = mx.array(sorted({*always, *near.flatten().tolist()}))
        logits = centroids.backbone.output_rows(candidates) @ y
        id, probability = found(centroids, y)
        assert id == int(candidates[mx.argmax(logits)])
        assert probability == pytest.approx(float(mx.softmax(logits).max()), rel=1e-4)


@pytest.mark.parametrize("name", ["centroids", "whole"])
def test_many_texts_get_what_each_would_get_alone(name, request):
    """Some without ids of their own, and an empty place; a text's bits depend on no neighbour."""
    common: DraftVocabulary = request.getfixturevalue(name)
    y = 3 * mx.random.normal((5, 64), key=mx.random.key(4))
    texts: list[DraftVocabulary | None] = [None, *(copy(common) for _ in range(4))]
    for text, tokens in zip(texts[1:], (OWN, [], [5], NOWHERE), strict=True):
        assert text
        text.start(tokens)
    ids, probabilities = common.best_of(y, texts)
    for i, text in enumerate(texts[1:], 1):
        id, probability = found(text, y[i])
        assert int(ids[i]) == id
        assert float(probabilities[i]) == pytest.approx(probability, rel=1e-4)
    for i in range(1, 5):
        others = [texts[i] if j == i else None for j in range(5)]
        again = common.best_of(mx.where(mx.arange(5)[:, None] == i, y, 0), others)
        assert (int(again[0][i]), float(again[1][i])) == (int(ids[i]), float(probabilities[i]))


def test_an_id_of_the_text_alone_is_found_among_many(centroids):
    """Its own row of the output matrix is the state: no other id is as near."""
    text, other = copy(centroids), copy(centroids)
    text.start(NOWHERE)
    other.start([])
    y = 1e4 * centroids.backbone.output_rows(mx.array(NOWHERE[:1]))  # (1, dim)
    ids, probabilities = centroids.best_of(mx.concatenate([y, y]), [text, other])
    assert int(ids[0]) == NOWHERE[0] != int(ids[1])
    assert float(probabilities[0]) > 0.9


def test_ids_of_the_last_text_are_forgotten(tiny: Backbone):
    ids, frequent = by_cluster(IDS, tiny, frequent=FREQUENT)
    drafts = CentroidVocabulary(ids, tiny, frequent=frequent)
    fresh = CentroidVocabulary(ids, tiny, frequent=frequent)
    drafts.start(OWN)
    drafts.start([5])
    fresh.start([5])
    for y in states(5):
        assert found(drafts, y) == found(fresh, y)


def test_a_step_reads_less_than_the_whole_vocabulary(centroids, whole):
    assert centroids.step_nbytes < whole.step_nbytes
    assert whole.step_nbytes == whole.nbytes == 1200 * 64 * 4


def test_a_vocabulary_of_frequent_ids_only_has_no_clusters(tiny: Backbone):
    ids, frequent = by_cluster(IDS[:200], tiny, frequent=FREQUENT)
    assert type(make_vocabulary(ids, tiny, frequent=frequent)) is DraftVocabulary
