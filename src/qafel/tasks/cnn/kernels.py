"""The paper's CNN, forward and backward, one image at a time, so that its activations stay in the cache.

Images and activations are [row, column, channel] with a border of two zeros. A layer is a convolution, a
group norm with one group per channel, ReLU, and max-pooling by two. Norm, ReLU and pooling are fused: the
largest of four normalised numbers is stored with its position, and only that position gets a gradient.
"""

import numpy as np
from numba import njit

from qafel.coding.numbers import F32, I32
from qafel.coding.numbers import UINT as U
from qafel.tasks.cnn.tile import tile1, tile4, tile5, tile6, tile7, unpool

CHANNELS = 32
EPSILON = F32(1e-5)
NOWHERE = I32(4)

_options = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz", "arcp"}}


@njit(**_options)
def _products(source, weights, start, out, shape):
    """Compute ``height`` rows of 32 sums in tiles; weights and sums have rows of 32.

    ``source`` is (address, row, height step, step), ``weights`` (address, row), ``start`` (address, step),
    ``shape`` (height, rows, count); see ``tile``.
    """
    of, row, height_step, step = source
    (height, rows, count), start_step, weight_row = shape, start[1], weights[1]
    for half in range(2):
        w, s, o = weights[0] + 64 * half, start[0] + 64 * half, out + 64 * half
        h = 0
        while h < height:
            left = height - h
            tall = 7 if left == 7 else 4 if left in (4, 8) else 5 if left in (5, 9, 10) else 6
            if left < 4:
                tall = 1
            a, b, c = of + 4 * h * height_step, s + 4 * h * start_step, o + 4 * h * CHANNELS
            if tall == 6:
                tile6(a, row, height_step, step, w, weight_row, b, start_step, c, rows, count)
            elif tall == 7:
                tile7(a, row, height_step, step, w, weight_row, b, start_step, c, rows, count)
            elif tall == 5:
                tile5(a, row, height_step, step, w, weight_row, b, start_step, c, rows, count)
            elif tall == 1:
                tile1(a, row, height_step, step, w, weight_row, b, start_step, c, rows, count)
            else:
                tile4(a, row, height_step, step, w, weight_row, b, start_step, c, rows, count)
            h += tall


@njit(**_options)
def _fold(sums, width, out):
    """Add the sums of all columns of a row, which gives one sum per channel."""
    for k in range(CHANNELS):
        out[U(k)] = F32(0)
    for x in range(width):
        for k in range(CHANNELS):
            out[U(k)] += sums[U(x * CHANNELS) + U(k)]


@njit(**_options)
def _convolve(padded, weights, bias, z):
    """Compute z = bias + weights * padded; rows of the border are skipped, because they are zero."""
    height, width = z.shape[0], z.shape[1]
    inner, wide, c = padded.shape[0] - 4, padded.shape[1], padded.shape[2]
    for y in range(height):
        first, last = max(0, 2 - y), min(3, inner + 2 - y)
        source = padded.ctypes.data + 4 * (y + first) * wide * c, wide * c, c, 1
        window = weights.ctypes.data + 4 * first * 3 * c * CHANNELS, 3 * c * CHANNELS
        out, shape = z.ctypes.data + 4 * y * width * CHANNELS, (width, last - first, 3 * c)
        _products(source, window, (bias.ctypes.data, 0), out, shape)


@njit(**_options)
def _forward(padded, weights, bias, gamma, beta, layer, out, border, sums, spread):
    z, moments, peak, where = layer
    _convolve(padded, weights, bias, z)
    height, width = z.shape[0], z.shape[1]
    n, count = width * CHANNELS, F32(height * width)
    mean, inverse, scale, shift = moments[0], moments[1], moments[2], moments[3]
    flat = z.reshape(z.size)
    for j in range(n):
        sums[U(j)] = F32(0)
    for y in range(height):
        for j in range(n):
            sums[U(j)] += flat[U(y * n) + U(j)]
    _fold(sums, width, mean)
    for k in range(CHANNELS):
        mean[k] /= count
    for j in range(n):
        spread[U(j)] = mean[U(j) % U(CHANNELS)]
        sums[U(j)] = F32(0)
    for y in range(height):
        for j in range(n):
            d = flat[U(y * n) + U(j)] - spread[U(j)]
            sums[U(j)] += d * d
    _fold(sums, width, inverse)
    for k in range(CHANNELS):
        inverse[k] = F32(1) / np.sqrt(inverse[k] / count + EPSILON)
        scale[k] = gamma[k] * inverse[k]
        shift[k] = beta[k] - mean[k] * scale[k]
    _pool(z, scale, shift, peak, where, out, border)


@njit(**_options)
def _pool(z, scale, shift, peak, where, out, border):
    """Write the largest of four numbers, its position, and its value before the norm."""
    width, pooled, wide = z.shape[1], peak.shape[1], out.shape[1]
    zs, outs = z.reshape(z.size), out.reshape(out.size)
    peaks, places = peak.reshape(peak.size), where.reshape(where.size)
    for y in range(peak.shape[0]):
        for x in range(pooled):
            upper = U((2 * y * width + 2 * x) * CHANNELS)
            lower = upper + U(width * CHANNELS)
            o = U(((y + border) * wide + x + border) * CHANNELS)
            p = U((y * pooled + x) * CHANNELS)
            for channel in range(CHANNELS):
                k = U(channel)
                a, b = scale[k], shift[k]
                z0, z1 = zs[upper + k], zs[upper + k + U(CHANNELS)]
                z2, z3 = zs[lower + k], zs[lower + k + U(CHANNELS)]
                v1, v2, v3 = z1 * a + b, z2 * a + b, z3 * a + b
                best, raw, place = z0 * a + b, z0, I32(0)
                more = v1 > best
                best, raw, place = v1 if more else best, z1 if more else raw, I32(1) if more else place
                more = v2 > best
                best, raw, place = v2 if more else best, z2 if more else raw, I32(2) if more else place
                more = v3 > best
                best, raw, place = v3 if more else best, z3 if more else raw, I32(3) if more else place
                active = not best <= F32(0)  # a NaN stays one
                outs[o + k] = best if active else F32(0)
                peaks[p + k] = raw
                places[p + k] = place if active else NOWHERE


@njit(**_options)
def _norm_backward(layer, d_out, d_gamma, d_beta, sums, spread, s1, s2):
    """Replace ``z`` by the gradient with respect to z.

    It is a constant and a slope per channel, plus the gradient of the pooled positions.
    """
    z, moments, peak, where = layer
    height, width, tall, pooled = z.shape[0], z.shape[1], peak.shape[0], peak.shape[1]
    n, count = width * CHANNELS, F32(height * width)
    mean, inverse, scale = moments[0], moments[1], moments[2]
    zs, peaks = z.reshape(z.size), peak.reshape(peak.size)
    places, ds = where.reshape(where.size), d_out.reshape(d_out.size)
    for k in range(CHANNELS):
        s1[k] = F32(0)
        s2[k] = F32(0)
    for cell in range(tall * pooled):
        p = U(cell * CHANNELS)
        for channel in range(CHANNELS):
            k = U(channel)
            d = ds[p + k] if places[p + k] < NOWHERE else F32(0)
            s1[k] += d
            s2[k] += d * ((peaks[p + k] - mean[k]) * inverse[k])
    for k in range(CHANNELS):
        d_gamma[k] += s2[k]
        d_beta[k] += s1[k]
        slope = -scale[k] * inverse[k] * s2[k] / count
        s1[k] = -scale[k] * s1[k] / count - slope * mean[k]
        s2[k] = slope
    for j in range(n):
        sums[U(j)] = s1[U(j) % U(CHANNELS)]
        spread[U(j)] = s2[U(j) % U(CHANNELS)]
    for y in range(height):
        for j in range(n):
            zs[U(y * n) + U(j)] = sums[U(j)] + spread[U(j)] * zs[U(y * n) + U(j)]
    at, to, share = where.ctypes.data, z.ctypes.data, d_out.ctypes.data
    for y in range(tall):
        for x in range(pooled):
            p, q = 4 * (y * pooled + x) * CHANNELS, 4 * (2 * y * width + 2 * x) * CHANNELS
            for half in range(0, 128, 64):
                below = to + q + 4 * width * CHANNELS + half
                unpool(at + p + half, share + p + half, scale.ctypes.data + half, to + q + half, below)


@njit(**_options)
def _weights_backward(padded, z, d_weights):
    """Add the gradient with respect to the weights; ``z`` holds the gradient with respect to z."""
    height, width = z.shape[0], z.shape[1]
    inner, wide, c = padded.shape[0] - 4, padded.shape[1], padded.shape[2]
    for ky in range(3):
        first, last = max(0, 2 - ky), min(height, inner + 2 - ky)
        out = d_weights.ctypes.data + 4 * ky * 3 * c * CHANNELS
        source = padded.ctypes.data + 4 * (first + ky) * wide * c, wide * c, 1, c
        window = z.ctypes.data + 4 * first * width * CHANNELS, width * CHANNELS
        _products(source, window, (out, CHANNELS), out, (3 * c, last - first, width))


@njit(**_options)
def _inputs_backward(z, flipped, zero, d_input):
    """Write the gradient with respect to the input; ``z`` holds the gradient with respect to z."""
    row, wide = z.shape[1] * CHANNELS, d_input.shape[1]
    window, start = (flipped.ctypes.data, 3 * CHANNELS * CHANNELS), (zero.ctypes.data, 0)
    for y in range(d_input.shape[0]):
        source, out = (
            (z.ctypes.data + 4 * y * row, row, CHANNELS, 1),
            d_input.ctypes.data + 4 * y * wide * CHANNELS,
        )
        _products(source, window, start, out, (wide, 3, 3 * CHANNELS))


@njit(**_options)
def _features(image, model, memory):
    """Compute the four layers; the output of the last one is in the features of ``memory``."""
    weights, _, biases, gamma, beta, _, _ = model
    padded, zs, moments, peaks, wheres, features, _, sums, spread = memory[:9]
    first = padded[0]
    for c in range(first.shape[2]):
        source = min(c, image.shape[0] - 1)  # a gray image has the same value in every colour
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                first[y + 2, x + 2, c] = image[source, y, x]
    for k in range(4):
        out, border = (padded[k + 1], 2) if k < 3 else (features, 0)
        layer = zs[k], moments[k], peaks[k], wheres[k]
        _forward(padded[k], weights[k], biases[k], gamma, beta, layer, out, border, sums, spread)


@njit(**_options)
def scores(images, model, memory, out):
    """Write the scores of each image, without dropout."""
    weights, bias = model[5], model[6]
    for i in range(images.shape[0]):
        _features(images[i], model, memory)
        features = memory[5].reshape(memory[5].size)
        for o in range(bias.size):
            total = bias[o]
            for k in range(features.size):
                total += weights[o, k] * features[k]
            out[i, o] = total


@njit(**_options)
def gradient(images, labels, keep, model, memory, grads):
    """Add the gradient of the mean cross-entropy to ``grads`` and return the loss.

    The features are multiplied by ``keep``, which implements dropout.
    """
    _, flipped, _, _, _, out_weights, out_bias = model
    padded, zs, moments, peaks, wheres, last, d_outs, sums, spread, zero, s1, s2 = memory
    d_weights, d_gamma, d_beta, d_out_weights, d_out_bias = grads
    features, d_features = last.reshape(last.size), d_outs[3].reshape(last.size)
    p = np.empty(out_bias.size, F32)
    loss, n = 0.0, images.shape[0]
    for i in range(n):
        _features(images[i], model, memory)
        for k in range(features.size):
            features[k] *= keep[i, k]
            d_features[k] = F32(0)
        top = F32(-np.inf)
        for o in range(p.size):
            p[o] = out_bias[o]
            for k in range(features.size):
                p[o] += out_weights[o, k] * features[k]
            top = max(top, p[o])
        total = F32(0)
        for o in range(p.size):
            p[o] = np.exp(p[o] - top)
            total += p[o]
        loss -= np.log(p[labels[i]] / total)
        for o in range(p.size):
            e = (p[o] / total - (F32(1) if o == labels[i] else F32(0))) / F32(n)
            d_out_bias[o] += e
            for k in range(features.size):
                d_out_weights[o, k] += e * features[k]
                d_features[k] += e * out_weights[o, k]
        for k in range(features.size):
            d_features[k] *= keep[i, k]
        for k in range(3, -1, -1):
            layer = zs[k], moments[k], peaks[k], wheres[k]
            _norm_backward(layer, d_outs[k], d_gamma, d_beta, sums, spread, s1, s2)
            _weights_backward(padded[k], zs[k], d_weights[k])
            if k:
                _inputs_backward(zs[k], flipped[k], zero, d_outs[k - 1])
    return loss / n
