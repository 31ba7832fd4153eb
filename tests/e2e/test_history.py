"""The checker that the other tests trust: it must find what is wrong and pass what is right."""

import random
import unittest

from history import NEVER, History, decode, encode


def verdict(writes=(), reads=()):
    history = History()
    history.writes = [(0, *w) for w in writes]
    history.reads = [(0, *r) for r in reads]
    return history.violations()


class Checker(unittest.TestCase):
    def test_right_histories_pass(self):
        self.assertEqual(verdict([(1, 0, 1), (2, 2, 3)], [(0, 0, 0.5), (1, 1, 2), (2, 4, 5)]), [])
        # Concurrent writes may land either way round, and an unanswered one may appear late.
        self.assertEqual(verdict([(1, 0, 5), (2, 0, 5)], [(2, 6, 7)]), [])
        self.assertEqual(verdict([(1, 0, 1), (2, 2, NEVER)], [(1, 5, 6), (2, 9, 10)]), [])

    def test_a_lost_write_is_found(self):
        self.assertTrue(verdict([(1, 0, 1), (2, 2, 3)], [(1, 4, 5)]))

    def test_a_lost_first_write_is_found(self):
        self.assertTrue(verdict([(1, 0, 1)], [(0, 2, 3)]))

    def test_a_stale_read_is_found(self):
        self.assertTrue(verdict([(1, 0, 1), (2, 1.5, NEVER)], [(2, 2, 3), (1, 4, 5)]))

    def test_a_late_retry_over_a_newer_write_is_found(self):
        self.assertTrue(verdict([(1, 0, 2), (2, 3, 4)], [(2, 5, 6), (1, 7, 8)]))

    def test_a_cut_off_write_may_vanish_but_not_come_late(self):
        history = History()
        history.writes = [(0, 2, 3, 4), (0, 3, 5, 6)]
        history.cut_off = [(0, 1, 0, 4)]
        history.reads = [(0, 2, 4.2, 4.5), (0, 3, 7, 8)]
        self.assertEqual(history.violations(), [])
        history.reads.append((0, 1, 9, 10))
        self.assertTrue(history.violations())

    def test_a_value_from_elsewhere_is_found(self):
        self.assertTrue(verdict([(1, 0, 1)], [(7, 2, 3)]))

    def test_a_read_from_the_future_is_found(self):
        self.assertTrue(verdict([(1, 5, 6)], [(1, 1, 2)]))

    def test_torn_blocks_are_seen(self):
        data = encode(5)
        self.assertEqual(decode(data), 5)
        self.assertIsNone(decode(data[:2048] + encode(6)[2048:]))

    def test_random_histories_of_one_register(self):
        """Histories made by a real register pass; each with one read made stale does not."""
        for seed in range(200):
            chance = random.Random(seed)
            now, state, value, writes, reads = 0.0, 0, 0, [], []
            for _ in range(40):  # an operation takes effect at one moment within its span
                begin, effect, end = now, now + chance.random(), now + 1 + chance.random()
                now = effect + 1e-6
                if chance.random() < 0.5:
                    value += 1
                    state = value
                    writes.append((value, begin, end))
                else:
                    reads.append((state, begin, end))
            self.assertEqual(verdict(writes, reads), [], f"seed {seed}")
            last = max(end for *_, end in writes)
            if value >= 2:
                stale = (1, last + 1, last + 2)
                self.assertTrue(verdict(writes, [*reads, stale]), f"seed {seed}")
