"""Patches on a device, sorted into tiles; on the processor here."""

import numpy as np
import pytest

from tests.shapes import bank_of_images

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def cloud(monkeypatch):
    from maskwitness.join import cloud as module

    monkeypatch.setattr(module, "DEVICE", "cpu")
    return module


class TestTreeOrder:
    @pytest.mark.parametrize("count", [1, 127, 128, 129, 20_000])
    def test_parts_the_points_into_near_ones(self, cloud, count):
        coords = torch.randn(count, 16, generator=torch.Generator().manual_seed(count))
        coords[:, 5] *= 6
        order = cloud.tree_order(coords)
        assert sorted(order.tolist()) == list(range(count))
        low, high = cloud._boxes(coords[order], -(-count // 128) * 128)
        if count > 10_000:
            assert float((high - low)[:, 5].mean()) < 0.2 * float(coords[:, 5].max() * 2)


class TestCloud:
    @pytest.mark.parametrize("size", [5, 24])
    def test_holds_every_patch_once_in_whole_tiles(self, cloud, size):
        rng = np.random.default_rng(size)
        bank = bank_of_images(
            rng.integers(0, 256, (300, size, size)), position_um=np.arange(300) * 7
        )
        rows = np.arange(10, 290)
        made = cloud.cloud_of(bank, rows, cloud.frame_of(bank), own=True)
        assert made.count == 280
        assert len(made.code) == len(made.norm) == len(made.patch) == 384
        assert made.code.shape[1] % 64 == 0
        assert sorted(made.row[:280].tolist()) == list(range(280))
        np.testing.assert_array_equal(made.patch[:280].numpy(), rows[made.row[:280].numpy()])
        np.testing.assert_array_equal(made.position_um[:280].numpy(), made.patch[:280] * 7)
        samples = cloud.frame_of(bank).samples.numpy()
        images = bank.image.reshape(300, -1)[made.patch[:280].numpy()][:, samples].astype(int) - 128
        np.testing.assert_array_equal(made.code[:280, : len(samples)].numpy(), images)
        np.testing.assert_array_equal(made.norm[:280].numpy(), (images**2).sum(axis=1))

    def test_of_another_bank_has_no_numbers(self, cloud):
        bank = bank_of_images(np.random.default_rng(0).integers(0, 256, (20, 6, 6)))
        made = cloud.cloud_of(bank, np.arange(20), cloud.frame_of(bank), own=False)
        assert set(made.patch[:20].tolist()) == {-1}

    def test_a_read_only_array_is_uploaded_without_a_word(self, cloud):
        array = np.arange(5)
        array.setflags(write=False)
        assert cloud.upload(array).tolist() == [0, 1, 2, 3, 4]
