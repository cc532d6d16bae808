"""What the self-join promises of any bank."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwitness.config import JoinSettings
from maskwitness.join import range_pairs
from maskwitness.records import Bank
from tests.shapes import bank_of_images

quick = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 10**6)
sizes = st.sampled_from([4, 7, 12, 34])
testify = st.sampled_from(["any", "other_stretch", "other_scan"])


def bank_of(seed: int, size: int, patches: int = 40) -> Bank:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (4, size, size))[rng.integers(0, 4, patches)]
    image = image + rng.integers(-6, 7, (patches, 1, 1)) * rng.integers(0, 2, image.shape)
    inside = np.hypot(*np.indices((size, size)) - (size - 1) / 2) <= size / 2
    return bank_of_images(
        np.clip(image, 0, 255) * inside,
        (rng.random(image.shape) < 0.4) & inside,
        has_image=rng.random(patches) > 0.15,
        group=rng.integers(0, 5, patches),
        position_um=rng.integers(0, 20_000, patches),
    )


def pairs_of(bank: Bank, **join):
    """Return {(patch, witness): (dist2, intersection, union)} in the order of the witnesses."""
    found = {}
    for pairs in range_pairs(bank, JoinSettings(**join)):
        patch = pairs.first + np.repeat(np.arange(len(pairs.offset) - 1), np.diff(pairs.offset))
        for i, j, d2, both, either in zip(
            patch.tolist(),
            pairs.witness.tolist(),
            pairs.dist2.tolist(),
            pairs.intersection.tolist(),
            pairs.union.tolist(),
            strict=True,
        ):
            assert (i, j) not in found
            found[i, j] = (d2, both, either)
    return found


@quick
@given(seed=seeds, size=sizes, rule=testify)
def test_without_a_limit_witnesses_testify_for_each_other(seed, size, rule):
    pairs = pairs_of(bank_of(seed, size), epsilon=0.005, k=0, testify=rule)
    assert {(j, i): counts for (i, j), counts in pairs.items()} == pairs
    assert all(i != j for i, j in pairs)


@quick
@given(seed=seeds, size=sizes, rule=testify)
def test_a_wider_epsilon_keeps_every_witness(seed, size, rule):
    bank = bank_of(seed, size)
    few = pairs_of(bank, epsilon=0.0005, k=0, testify=rule)
    many = pairs_of(bank, epsilon=0.01, k=0, testify=rule)
    assert few.items() <= many.items()


@quick
@given(seed=seeds, size=sizes, k=st.integers(1, 45))
def test_a_limit_keeps_the_first_of_all_witnesses(seed, size, k):
    bank = bank_of(seed, size)
    everything = pairs_of(bank, epsilon=0.01, k=0)
    kept = pairs_of(bank, epsilon=0.01, k=k)
    for patch in range(len(bank.image)):
        row = [(counts[0], j) for (i, j), counts in everything.items() if i == patch]
        assert row == sorted(row)
        assert [j for i, j in kept if i == patch] == [j for _, j in row[:k]]


@quick
@given(seed=seeds, size=sizes, rule=testify)
def test_stricter_rules_of_testimony_only_take_witnesses_away(seed, size, rule):
    bank = bank_of(seed, size)
    free = pairs_of(bank, epsilon=0.01, k=0)
    bound = pairs_of(bank, epsilon=0.01, k=0, testify=rule)
    assert bound.items() <= free.items()
    if rule == "other_scan":
        assert all(bank.group[i] != bank.group[j] for i, j in bound)


@quick
@given(seed=seeds, size=sizes)
def test_the_order_of_the_bank_does_not_matter(seed, size):
    bank = bank_of(seed, size)
    order = np.random.default_rng(seed).permutation(len(bank.image))
    turned = Bank(
        image=bank.image[order],
        mask=bank.mask[order],
        has_image=bank.has_image[order],
        group=bank.group[order],
        position_um=bank.position_um[order],
    )
    join = {"epsilon": 0.01, "k": 0, "testify": "other_stretch"}
    there = pairs_of(turned, **join)
    back = {(int(order[i]), int(order[j])): counts for (i, j), counts in there.items()}
    assert back == pairs_of(bank, **join)


@quick
@given(seed=seeds, size=sizes)
def test_overlaps_are_possible_counts(seed, size):
    bank = bank_of(seed, size)
    area = np.unpackbits(bank.mask, axis=1).sum(axis=1)
    for (i, j), (_, both, either) in pairs_of(bank, epsilon=0.01, k=0).items():
        assert both <= min(area[i], area[j]) <= max(area[i], area[j]) <= either
        assert both + either == int(area[i]) + int(area[j])
