"""The clock of the simulator: a heap of what is due, and the rules of ``timeline``, event by event.

``advance`` writes events into a block until it is full or something is missing (random numbers, arrivals,
room, an answer), and continues where it was when called again. Nothing is changed before what is needed is
known to be there.
"""

import numpy as np
from numba import njit

START, NEVER, TRAINED, REPORT, LOST, DELIVER, AWAY = range(7)
FULL, NEEDS_ARRIVALS, NEEDS_DRAWS, NEEDS_CLIENTS, NEEDS_ROOM, ENDED, ASKS = 0, 1, 2, 3, 4, 5, 6
OPEN, REFILL, CLOSED, ROUNDS = 0, 1, 2, 3

# counters
TASKS, IN_FLIGHT, VERSION, DELIVERED, BUFFERED, HEAP, FREE = range(7)
ARRIVAL, CLIENT, PUSHES, PENDING, FORCED, DRAWN, RESTARTED = range(7, 14)
COUNTERS = 14
NOW, AREA, LENGTH = 0, 1, 2
CLOCKS = 3

# fields of a task in flight
OWNER, TASK, FROM, SERIAL, DROPPED = 0, 1, 2, 3, 4
FIELDS = 5


@njit(nogil=True, cache=True)
def push(counters, due, order, what, time, kind, slot):
    """Put an event onto the heap; events due at the same time happen in the order they were put there."""
    k = counters[HEAP]
    counters[HEAP] += 1
    sequence = counters[PUSHES]
    counters[PUSHES] += 1
    while k > 0:
        parent = (k - 1) // 2
        if due[parent] <= time:
            break
        due[k], order[k] = due[parent], order[parent]
        what[k, 0], what[k, 1] = what[parent, 0], what[parent, 1]
        k = parent
    due[k], order[k] = time, sequence
    what[k, 0], what[k, 1] = kind, slot


@njit(nogil=True, cache=True)
def _pop(counters, due, order, what):
    """Take the first event off the heap: (kind, slot)."""
    kind, slot = what[0, 0], what[0, 1]
    counters[HEAP] -= 1
    size = counters[HEAP]
    time, sequence = due[size], order[size]
    last_kind, last_slot = what[size, 0], what[size, 1]
    k = 0
    while True:
        child = 2 * k + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            due[right] < due[child] or (due[right] == due[child] and order[right] < order[child])
        ):
            child = right
        if time < due[child] or (time == due[child] and sequence < order[child]):
            break
        due[k], order[k] = due[child], order[child]
        what[k, 0], what[k, 1] = what[child, 0], what[child, 1]
        k = child
    due[k], order[k] = time, sequence
    what[k, 0], what[k, 1] = last_kind, last_slot
    return kind, slot


@njit(nogil=True, cache=True)
def advance(rules, counters, clocks, heap, slots, free, clients, draws, arrivals, events):
    """(how many events were written, why it stopped)."""
    mode, buffer_size, max_staleness, cap, idle, live, instant, dropouts = rules
    due, order, what = heap
    busy, tasks, slowness = clients
    durations, dropping, choices = draws
    starts, start_clients, start_lengths, last = arrivals
    kinds, times, whose, due_times = events
    population, block = busy.size, durations.size
    n = 0
    while n < kinds.size:
        if counters[PENDING] > 0:
            if counters[FREE] == 0 or counters[HEAP] + 2 >= due.size:
                return n, NEEDS_ROOM
            serial = counters[TASKS]
            at = serial % block
            if serial >= counters[DRAWN]:
                return n, NEEDS_DRAWS
            client = counters[FORCED]
            if mode == CLOSED and serial < population:
                client = serial
            while client < 0:
                if counters[CLIENT] == choices.size:
                    return n, NEEDS_CLIENTS
                client = choices[counters[CLIENT]]
                counters[CLIENT] += 1
                if idle and busy[client] > 0:
                    client = -1
            counters[PENDING] -= 1
            counters[FREE] -= 1
            slot = free[counters[FREE]]
            length = clocks[LENGTH] if clocks[LENGTH] >= 0 else durations[at]
            length *= slowness[client % slowness.size]
            dropped = dropping[at] < dropouts
            slots[slot, OWNER], slots[slot, TASK], slots[slot, SERIAL] = client, tasks[client], serial
            slots[slot, FROM], slots[slot, DROPPED] = counters[DELIVERED], dropped
            tasks[client] += 1
            busy[client] += 1
            counters[TASKS] += 1
            counters[IN_FLIGHT] += 1
            kind = NEVER if dropped else START
            _emit(kinds, times, whose, n, kind, clocks[NOW], slots, slot, counters[DELIVERED])
            due_times[n] = clocks[NOW] + length
            n += 1
            if live:
                clocks[LENGTH] = length
                return n, ASKS
            clocks[LENGTH] = -1.0
            push(counters, due, order, what, clocks[NOW] + length, LOST if dropped else REPORT, slot)
            continue
        following = np.inf
        if mode == OPEN:
            if counters[ARRIVAL] < starts.size:
                following = starts[counters[ARRIVAL]]
            elif not last:
                return n, NEEDS_ARRIVALS
        if counters[HEAP] == 0 and following == np.inf:
            return n, ENDED
        if counters[HEAP] > 0 and due[0] <= following:
            now = due[0]
            clocks[AREA] += counters[IN_FLIGHT] * (now - clocks[NOW])
            clocks[NOW] = now
            if mode == CLOSED and not counters[RESTARTED] and (what[0, 0] == REPORT or what[0, 0] == LOST):
                counters[RESTARTED], counters[PENDING], counters[FORCED] = 1, 1, slots[what[0, 1], OWNER]
                continue
            kind, slot = _pop(counters, due, order, what)
            if kind == DELIVER:
                counters[DELIVERED] = slot
                kinds[n], times[n] = DELIVER, now
                whose[n, :] = -1
                whose[n, 3] = slot
                n += 1
                if mode == ROUNDS:
                    counters[PENDING], counters[FORCED] = buffer_size, -1
                    busy[:] = 0
                continue
            staleness = counters[VERSION] - slots[slot, FROM]
            _emit(kinds, times, whose, n, kind, now, slots, slot, staleness)
            n += 1
            if kind == TRAINED:
                return n, ASKS
            client, stepped = slots[slot, OWNER], False
            if kind == REPORT and (max_staleness < 0 or staleness <= max_staleness):
                counters[BUFFERED] += 1
                stepped = counters[BUFFERED] == buffer_size
            if stepped:
                counters[BUFFERED] = 0
                counters[VERSION] += 1
                if instant:
                    counters[DELIVERED] = counters[VERSION]
            counters[RESTARTED] = 0
            counters[IN_FLIGHT] -= 1
            if mode != ROUNDS or kind == LOST:  # a client that has reported is not drawn again in its round
                busy[client] -= 1
            free[counters[FREE]] = slot
            counters[FREE] += 1
            if mode == REFILL or (mode == ROUNDS and (kind == LOST or staleness > max_staleness >= 0)):
                counters[PENDING], counters[FORCED] = 1, -1
            elif mode == ROUNDS and stepped and instant:
                counters[PENDING], counters[FORCED] = buffer_size, -1
                busy[:] = 0
            if live and stepped and not instant:
                return n, ASKS
        else:
            clocks[AREA] += counters[IN_FLIGHT] * (following - clocks[NOW])
            clocks[NOW] = following
            k = counters[ARRIVAL]
            counters[ARRIVAL] += 1
            if (cap > 0 and counters[IN_FLIGHT] >= cap) or (idle and counters[IN_FLIGHT] >= population):
                kinds[n], times[n] = AWAY, following
                whose[n, :] = -1
                n += 1
                continue
            counters[PENDING], counters[FORCED] = 1, start_clients[k]
            clocks[LENGTH] = start_lengths[k]
    return n, FULL


@njit(nogil=True, cache=True, inline="always")
def _emit(kinds, times, whose, n, kind, time, slots, slot, version):
    kinds[n], times[n] = kind, time
    whose[n, 0], whose[n, 1], whose[n, 2] = slots[slot, SERIAL], slots[slot, OWNER], slots[slot, TASK]
    whose[n, 3], whose[n, 4] = version, slot
