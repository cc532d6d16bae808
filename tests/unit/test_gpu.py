"""The join on a CUDA device: its kernels interpreted, lowered, and, where there is one, on a card.

With TRITON_INTERPRET=1 Triton runs the same kernels on the processor, slowly: everything but the
compiler and the card itself is tested then. Without it they are compiled: lowering to the card's
code needs no card either.
"""

import dataclasses
import os

import numpy as np
import pytest

from maskwitness import join
from maskwitness.config import JoinSettings
from maskwitness.join import ANY_DISTANCE, dist2_limit, nearest_pairs, range_pairs, reach_of
from maskwitness.patches import circle
from maskwitness.records import Bank
from tests.shapes import bank_of_images
from tests.unit.test_join import assert_same_pairs, bank_with_ties, part_of

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings(
    "ignore:TRITON_DEFAULT_FP_FUSION", "ignore::DeprecationWarning"
)
MEMORY = 2**26
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture
def gpu(monkeypatch):
    from maskwitness.join import cloud
    from maskwitness.join import gpu as module

    monkeypatch.setattr(cloud, "DEVICE", "cpu")
    return module


def search(gpu, bank: Bank, settings: JoinSettings, queries=None, nearest=False, memory=MEMORY):
    wanted = gpu.Wanted(
        limit=ANY_DISTANCE if nearest else dist2_limit(settings.epsilon, bank.image.shape[1]),
        k=settings.k,
        reach_um=reach_of(settings),
        waves=nearest,
    )
    asking = bank if queries is None else queries
    return list(gpu.blocks(bank, asking, queries is None, wanted, memory))


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
class TestInterpreted:
    @pytest.mark.parametrize("k", [0, 7, 300])
    @pytest.mark.parametrize("testify", ["any", "other_stretch", "other_scan"])
    def test_finds_what_the_processor_finds(self, gpu, k, testify):
        bank = bank_with_ties(k, patches=300)
        settings = JoinSettings(epsilon=0.02, k=k, testify=testify, stretch_mm=3.0)
        found = search(gpu, bank, settings)
        assert sum(len(block.witness) for block in found) > 500
        assert_same_pairs(found, list(range_pairs(bank, settings)))

    @pytest.mark.parametrize("size", [4, 9, 24, 33])
    def test_of_every_size(self, gpu, size):
        bank, settings = bank_with_ties(size, patches=150, size=size), JoinSettings(epsilon=0.01)
        assert_same_pairs(search(gpu, bank, settings), list(range_pairs(bank, settings)))

    def test_distances_are_exact_at_the_extremes(self, gpu):
        image = np.zeros((4, 24, 24), int)
        image[0], image[2, 12:] = 255, 255
        bank, settings = bank_of_images(image * circle(24)), JoinSettings(epsilon=1.0)
        assert_same_pairs(search(gpu, bank, settings), list(range_pairs(bank, settings)))

    @pytest.mark.parametrize("k", [1, 20])
    @pytest.mark.parametrize("testify", ["any", "other_scan"])
    def test_the_nearest_of_many_tiles(self, gpu, k, testify):
        bank = bank_with_ties(k, patches=1500)
        settings = JoinSettings(k=k, testify=testify)
        found = search(gpu, bank, settings, nearest=True)
        assert_same_pairs(found, list(nearest_pairs(bank, k, settings)))

    def test_queries_of_another_bank(self, gpu):
        whole = bank_with_ties(3, patches=400)
        bank, queries = part_of(whole, slice(0, 300)), part_of(whole, slice(300, 400))
        settings = JoinSettings(epsilon=0.02)
        expected = list(range_pairs(bank, settings, queries))
        assert_same_pairs(search(gpu, bank, settings, queries), expected)

    def test_rows_without_image_have_no_witnesses(self, gpu):
        bank = bank_with_ties(4)
        queries = dataclasses.replace(bank, has_image=np.zeros(90, bool))
        (pairs,) = search(gpu, bank, JoinSettings(), queries)
        assert pairs.offset.tolist() == [0] * 91

    @pytest.mark.parametrize("k", [0, 20])
    def test_a_small_card_needs_more_blocks(self, gpu, k):
        bank, settings = bank_with_ties(5, patches=1500), JoinSettings(epsilon=0.02, k=k)
        expected = list(range_pairs(bank, settings))
        found = search(gpu, bank, settings, memory=2**21)
        assert len(found) > 1 or k > 0
        assert_same_pairs(found, expected)

    def test_a_bank_that_does_not_fit_comes_in_slabs(self, gpu, monkeypatch):
        bank, settings = bank_with_ties(6, patches=700), JoinSettings(epsilon=0.02, k=30)
        made = []
        real = gpu.cloud_of

        def noted(*args, **more):
            made.append(len(args[1]))
            return real(*args, **more)

        monkeypatch.setattr(gpu, "cloud_of", noted)
        slabs = gpu.Slabs.__init__

        def small(slab, bank, frame, most_bytes):
            slabs(slab, bank, frame, 384 * 200)

        monkeypatch.setattr(gpu.Slabs, "__init__", small)
        found = search(gpu, bank, settings)
        assert len(made) > 3
        assert_same_pairs(found, list(range_pairs(bank, settings)))
        nearest = search(gpu, bank, settings, nearest=True)
        assert_same_pairs(nearest, list(nearest_pairs(bank, 30, settings)))

    def test_a_row_that_does_not_fit_is_said(self, gpu):
        bank = bank_of_images(np.zeros((300, 6, 6)))
        with pytest.raises(MemoryError, match="more witnesses than the device can hold"):
            search(gpu, bank, JoinSettings(k=0), memory=1)


class TestSorting:
    @pytest.mark.parametrize("patch_bits", [22, 31])
    def test_by_row_then_key(self, gpu, patch_bits):
        # With 31 bits row, distance and number do not fit into one word: two sorts do it.
        rng = np.random.default_rng(0)
        row = rng.integers(0, 2**12, 5000)
        key = (rng.integers(0, 2**24, 5000) << 31) | rng.integers(0, 2**22, 5000)
        order = np.lexsort([key, row])
        found = gpu.sort_hits(
            torch.from_numpy(row.astype(np.int32)), torch.from_numpy(key), 2**12, patch_bits
        )
        np.testing.assert_array_equal(found[0].numpy(), row[order])
        np.testing.assert_array_equal(found[1].numpy(), key[order])


@pytest.mark.skipif(INTERPRETED, reason="TRITON_INTERPRET=1 compiles nothing")
class TestLowering:
    """The compiler makes the card's code without the card."""

    @pytest.mark.parametrize(("generation", "product"), [(80, "mma.sync"), (90, "wgmma")])
    def test_products_run_on_the_matrix_units(self, generation, product):
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        from maskwitness.join import gpu_kernels as kernels

        i8, i32, i64 = "*i8", "*i32", "*i64"
        signature = {
            **dict.fromkeys(["query_code", "bank_code"], i8),
            **dict.fromkeys(["query_norm", "query_limit", "query_row", "query_patch"], i32),
            **dict.fromkeys(["bank_norm", "bank_patch", "block_of", "tile_of", "hit_row"], i32),
            **dict.fromkeys(["query_group", "query_place", "bank_group", "bank_place"], i64),
            **dict.fromkeys(["hit_key", "hits"], i64),
            **dict.fromkeys(["queries", "patches"], "i32"),
            **dict.fromkeys(["reach", "room"], "i64"),
            **dict.fromkeys(["samples", "step", "tile"], "constexpr"),
        }
        names = kernels.find_hits.arg_names
        source = ASTSource(
            kernels.find_hits,
            {name: signature[name] for name in names},
            constexprs={"samples": 448, "step": kernels.STEP, "tile": kernels.TILE},
        )
        target = GPUTarget("cuda", generation, 32)
        made = triton.compile(source, target=target, options={"num_warps": 8})
        assert product in made.asm["ptx"]
        assert ".s32.s8.s8" in made.asm["ptx"]  # integers in, integers out
        assert made.metadata.shared <= 163 * 1024  # what every such card has

    def test_overlaps(self):
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        from maskwitness.join import gpu_kernels as kernels

        kinds = ["*i32"] * 4 + ["*i16"] * 2 + ["i64"] + ["constexpr"] * 2
        names = kernels.count_overlaps.arg_names
        source = ASTSource(
            kernels.count_overlaps,
            dict(zip(names, kinds, strict=True)),
            constexprs={"words": 18, "block": kernels.PAIRS},
        )
        made = triton.compile(source, target=GPUTarget("cuda", 80, 32))
        assert len(made.asm["cubin"]) > 1000


class TestWithoutCard:
    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
    def test_the_processor_works_instead(self):
        assert join.why_no_device() == "torch finds no CUDA device"
        bank, settings = bank_with_ties(7), JoinSettings(epsilon=0.02)
        expected = list(range_pairs(bank, settings))
        assert_same_pairs(list(range_pairs(bank, settings, device="cuda")), expected)
        assert_same_pairs(list(range_pairs(bank, settings, device="auto")), expected)

    def test_an_old_card_is_refused(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
        assert join.why_no_device() == "the CUDA device is of generation 7.0; 7.5 is the least"

    def test_without_a_compiler_none_is_used(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CC", raising=False)
        assert join.why_no_device() == (
            "Triton needs a C compiler, cc, gcc or clang, and finds none"
        )
        monkeypatch.setenv("CC", "/opt/cc")
        assert join.why_no_device() == ""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnCard:
    @pytest.mark.parametrize("k", [0, 7, 2047])
    def test_finds_what_the_processor_finds(self, k):
        bank, settings = bank_with_ties(k, patches=5000, size=24), JoinSettings(epsilon=0.02, k=k)
        found = list(range_pairs(bank, settings, device="cuda"))
        assert_same_pairs(found, list(range_pairs(bank, settings)))

    def test_and_the_nearest(self):
        bank, settings = bank_with_ties(1, patches=5000, size=24), JoinSettings()
        found = list(nearest_pairs(bank, 32, settings, device="cuda"))
        assert_same_pairs(found, list(nearest_pairs(bank, 32, settings)))
