"""Kernels that draw faces and normalise pixels.

Faces are drawn one row of pixels at a time, without branches, so that the loop over a row is vectorised.
"""

import numpy as np
from numba import njit

from qafel.coding.numbers import F32, U32, UINT
from qafel.streams.kernels import fill

SIDE = 32

BODY = np.array(
    [
        (0.55, 0.78),  # half the width of the head
        (0.78, 0.98),  # half the height of the head
        (0.22, 0.32),  # distance of the eyes from the middle
        (0.09, 0.15),  # size of an eye
        (0.36, 0.52),  # height of the mouth
        (0.26, 0.42),  # half the width of the mouth
        (0.05, 0.10),  # thickness of the lips
        (0.32, 0.62),  # hair line
        (0.0, 1.0),  # visibility of the teeth
    ]
)
POSE = np.array(
    [
        (-0.12, 0.12),  # horizontal offset
        (-0.12, 0.12),  # vertical offset
        (-0.2, 0.2),  # angle; _pose replaces it by its cosine
        (0.0, 0.0),  # the sine of the angle
        (0.60, 0.85),  # zoom
        (0.55, 1.15),  # light
        (-0.4, 0.4),  # horizontal slope of the light
        (-0.35, 0.35),  # vertical slope of the light
        (0.0, 1.0),  # curvature of the mouth
        (0.05, 0.22),  # opening of the mouth
        (-0.6, 0.6),  # gaze
        (0.03, 0.18),  # noise
        (-1.0, 1.0),  # square that covers a part of the face: horizontal position
        (-1.0, 1.0),  # its vertical position
        (0.1, 0.3),  # half its side
    ]
)
SKIN = np.array([1.0, 0.82, 0.70])
HAIR = np.array([1.0, 0.8, 0.6])
LIPS = np.array([0.6, 0.3, 0.3])
SMILE = 0.14, 0.36
NO_SMILE = -0.16, 0.03
RESTING = 0.05
"""The largest curvature of a resting mouth, up or down; it is part of a style."""
OPEN_MOUTH, OPEN_SMILE, COVERED = 0.3, 0.65, 0.15
STYLES = len(BODY) + 20
"""The number of random numbers in a style."""
POSES = len(POSE) + 3
"""The number of random numbers in a pose."""


@njit(nogil=True, cache=True)
def _person(u, style):
    """Write a person's style: head, eyes, mouth; colours of background, skin, hair and lips."""
    for k in range(BODY.shape[0]):
        style[k] = BODY[k, 0] + (BODY[k, 1] - BODY[k, 0]) * u[k]
    back, skin, hair = 0.3 + 0.4 * u[9], 0.35 + 0.6 * u[10], 0.03 + 0.57 * u[11]
    for c in range(3):
        style[9 + c] = back + 0.2 * u[14 + c] - 0.1
        style[12 + c] = 0.2 * u[17 + c] - 0.1
        style[15 + c] = skin * SKIN[c] + 0.1 * u[20 + c] - 0.05
        style[18 + c] = hair * HAIR[c] + 0.12 * u[23 + c] - 0.06
        style[21 + c] = style[15 + c] * LIPS[c] + 0.16 * u[26 + c] - 0.08


@njit(nogil=True, cache=True)
def _pose(u, smiling, resting, pose):
    """Write a pose: position, angle, zoom, light, mouth, gaze, noise, and a square that covers a part."""
    for k in range(POSE.shape[0]):
        pose[k] = POSE[k, 0] + (POSE[k, 1] - POSE[k, 0]) * u[k]
    low, high = SMILE if smiling else NO_SMILE
    pose[3], pose[2] = np.sin(pose[2]), np.cos(pose[2])
    pose[8] = resting + low + (high - low) * u[8]
    if u[15] >= (OPEN_SMILE if smiling else OPEN_MOUTH):
        pose[9] = 0.0
    if u[16] >= COVERED:
        pose[14] = -1.0


@njit(nogil=True, cache=True, inline="always", fastmath={"nnan", "nsz"})
def _clip(v):
    return min(max(v, F32(0)), F32(1))


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"nnan", "nsz"})
def _draw(style, poses, key0, key1, out):
    """Draw an image for each pose.

    ``style`` describes the person, a pose describes one picture. ``out`` is [n, 3, 32, 32], from −1 to 1.
    """
    words = np.empty(3 * SIDE * SIDE // 4, U32)
    noise = words.view(np.uint8)
    pixels = SIDE * SIDE
    masks = np.empty((11, SIDE), F32)
    per_wide, per_tall, per_eye = F32(1) / style[0], F32(1) / style[1], F32(1) / style[3]
    eye_gap, eye_size, mouth_height, hair_line, teeth = style[2], style[3], style[4], style[7], style[8]
    per_mouth, per_lip = F32(1) / style[5], F32(1) / style[6]
    for i in range(out.shape[0]):
        pose = poses[i]
        dx, dy, cosine, sine, zoom, light = pose[0], pose[1], pose[2], pose[3], pose[4], pose[5]
        slope_x, slope_y, curve, opening, gaze, grain = pose[6], pose[7], pose[8], pose[9], pose[10], pose[11]
        cover_x, cover_y, cover = pose[12], pose[13], pose[14]
        fill(words, U32(i * words.size), key0, key1)
        image = out[i].reshape(3 * pixels)
        for row in range(SIDE):
            v0 = (F32(row) - F32(15.5)) / F32(16) - dy
            for column in range(SIDE):
                u0 = (F32(column) - F32(15.5)) / F32(16) - dx
                u = (u0 * cosine + v0 * sine) * zoom
                v = (v0 * cosine - u0 * sine) * zoom
                # head, hair, eyes, and a mouth whose corners rise with `curve`
                round_u, round_v = u * per_wide, v * per_tall
                head = _clip((F32(1) - round_u * round_u - round_v * round_v) * F32(5))
                round_v += F32(0.12) * per_tall
                crown = _clip((F32(1.15) - round_u * round_u - round_v * round_v) * F32(5))
                side, lid = abs(u) - eye_gap, v + F32(0.2)
                near_u, near_v = side * per_eye, lid * per_eye * F32(1.6)
                across = u * per_mouth
                arch = F32(1) - across * across
                within, gap = _clip(arch * F32(4)), opening * arch
                below = v - mouth_height - curve * (arch - F32(0.6)) - F32(0.5) * gap
                away = abs(below) - F32(0.5) * max(gap, F32(0))
                glance = side - gaze * eye_size
                dark = F32(1) - (glance * glance + lid * lid) * (F32(5) * per_eye * per_eye)
                brow = _clip(F32(1) - abs(v + F32(0.36)) * F32(14))
                masks[0, column] = crown
                masks[1, column] = head
                masks[2, column] = crown * _clip((-v - hair_line + F32(0.25) * u * u) * F32(9))
                masks[3, column] = head * _clip((F32(1) - near_u * near_u - near_v * near_v) * F32(3))
                masks[4, column] = head * _clip(dark * F32(3))
                masks[5, column] = head * brow * _clip((eye_size * F32(1.4) - abs(side)) * F32(12))
                masks[6, column] = head * within * _clip(F32(1) - away * per_lip)
                masks[7, column] = head * within * teeth * _clip((F32(0.4) * gap - abs(below)) * F32(20))
                masks[8, column] = _clip(F32(1) - abs(u) * F32(9)) * _clip(
                    F32(1) - abs(v - F32(0.1)) * F32(6)
                )
                masks[9, column] = light * (F32(1) + slope_x * u0 + slope_y * v0)
                masks[10, column] = _clip((cover - max(abs(u0 - cover_x), abs(v0 - cover_y))) * F32(16))
            for colour in range(3):
                ground, tilt, tan = style[9 + colour], style[12 + colour], style[15 + colour]
                hair, lips = style[18 + colour], style[21 + colour]
                at = colour * pixels + row * SIDE
                for column in range(SIDE):
                    back = ground + tilt * ((F32(column) - F32(15.5)) / F32(16) - dx + v0)
                    value = back + (hair - back) * masks[0, column]
                    value += (tan * (F32(1) - F32(0.15) * masks[8, column]) - value) * masks[1, column]
                    value += (hair - value) * masks[2, column]
                    value += (F32(0.9) - value) * masks[3, column]
                    value += (F32(0.1) - value) * masks[4, column]
                    value += (hair - value) * masks[5, column]
                    value += (lips - value) * masks[6, column]
                    value += (F32(0.92) - value) * masks[7, column]
                    value *= masks[9, column]
                    value += (back - value) * masks[10, column]
                    jitter = (F32(noise[at + column]) - F32(127.5)) * F32(1 / 127.5)
                    image[at + column] = F32(2) * _clip(value + grain * jitter) - F32(1)


@njit(nogil=True, cache=True)
def faces(u, key0, key1, labels, out):
    """Draw the pictures of one person from the random numbers ``u``; a label is 1 if the person smiles."""
    style, poses = np.empty(24, F32), np.empty((labels.size, POSE.shape[0]), F32)
    _person(u, style)
    resting, smiles = RESTING * (2 * u[12] - 1), 0.2 + 0.6 * u[13]
    for i in range(labels.size):
        numbers = u[STYLES + i * POSES : STYLES + (i + 1) * POSES]
        labels[i] = 1 if numbers[17] < smiles else 0
        _pose(numbers, labels[i] == 1, resting, poses[i])
    _draw(style, poses, key0, key1, out)


@njit(nogil=True, cache=True)
def normalise(pixels, rows, out):
    """Convert bytes to numbers from −1 to 1, colours first.

    The bytes are sorted by colour before they are converted, which is faster than after.
    """
    cells, colours = pixels.shape[1:]
    sorted_bytes = np.empty(cells * colours, np.uint8)
    for i in range(rows.size):
        image = pixels[rows[i]]
        for c in range(colours):
            plane = sorted_bytes[c * cells : (c + 1) * cells]
            for k in range(UINT(cells)):
                plane[k] = image[k, UINT(c)]
        numbers = out[i]
        for k in range(UINT(sorted_bytes.size)):
            numbers[k] = F32(sorted_bytes[k]) * F32(2 / 255) - F32(1)
