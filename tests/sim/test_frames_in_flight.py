"""Frames in flight: what is put in comes out, from memory or from the file, and places are used again."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from qafel.sim.frames import Frames


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.binary(min_size=1, max_size=9000)), max_size=80))
def test_frames_come_out_as_they_went_in(steps: list[tuple[int, bytes]]) -> None:
    frames = Frames(budget=10_000)
    model: dict[int, bytes] = {}
    for task, data in steps:
        if task in model:
            assert frames.size(task) == len(model[task])
            assert frames.pop(task) == model.pop(task)
        else:
            frames.put(task, data)
            model[task] = data
        if task % 7 == 0:
            frames.commit()
    assert len(frames) == len(model)
    assert all(frames.pop(task) == data for task, data in model.items())
    frames.close()


def test_a_checkpoint_speaks_of_frames_that_later_ones_do_not_overwrite(tmp_path: Path) -> None:
    frames = Frames(tmp_path / "frames.bin", budget=0)
    for task in range(10):
        frames.put(task, bytes([task]) * 5000)
    saved = frames.state()
    for task in range(10):
        frames.pop(task)
        frames.put(100 + task, b"x" * 5000)
    frames.close()
    again = Frames(tmp_path / "frames.bin", budget=0)
    again.restore(saved)
    assert [again.pop(task) for task in range(10)] == [bytes([task]) * 5000 for task in range(10)]
    again.commit()
    end = again.spilled
    for task in range(10):
        again.put(task, b"y" * 5000)
    assert again.spilled == end  # places are known again after a resume
    again.close()


def test_the_file_does_not_grow_when_places_are_free() -> None:
    frames = Frames(budget=0)
    for task in range(1000):
        frames.put(task, b"x" * 5000)
        if task >= 10:
            frames.pop(task - 10)
            frames.commit()
    assert frames.spilled <= 12 * 8192
    frames.close()
