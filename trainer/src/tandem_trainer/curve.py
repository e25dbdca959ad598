"""Draw the reward of a run as a PNG, with Pillow alone: vLLM brings that one anyway."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 720, 400, 56
INK, GRID, LINE = "#222222", "#dddddd", "#2f6f4f"


def points(rewards: Sequence[float]) -> list[tuple[float, float]]:
    """Return where each step is on the picture; the reward's axis goes from 0 to 1."""
    span = max(len(rewards) - 1, 1)
    return [
        (
            MARGIN + (WIDTH - 2 * MARGIN) * index / span,
            HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * min(max(reward, 0.0), 1.0),
        )
        for index, reward in enumerate(rewards)
    ]


def draw(rewards: Sequence[float], path: Path) -> None:
    """Write the curve of the mean reward by step."""
    from PIL import Image, ImageDraw  # noqa: PLC0415 - exists in the image only

    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    for tenth in range(0, 11, 2):
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * tenth / 10
        pen.line([(MARGIN, y), (WIDTH - MARGIN, y)], fill=GRID)
        pen.text((MARGIN - 30, y - 6), f"{tenth / 10:.1f}", fill=INK)
    places = points(rewards)
    pen.line(places, fill=LINE, width=3)
    every = max(len(rewards) // 10, 1)
    for index, (x, y) in enumerate(places):
        pen.ellipse([(x - 3, y - 3), (x + 3, y + 3)], fill=LINE)
        if index % every == 0:
            pen.text((x - 4, HEIGHT - MARGIN + 8), str(index + 1), fill=INK)
    pen.text((MARGIN, 20), "mean reward", fill=INK)
    pen.text((WIDTH - MARGIN - 24, HEIGHT - MARGIN + 26), "step", fill=INK)
    image.save(path)
