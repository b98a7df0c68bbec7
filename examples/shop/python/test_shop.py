"""Tests of the shop: python3 -m unittest. The last one needs the program howdah, on the PATH or as HOWDAH_BIN."""

import unittest

import howdah
import shop
from howdah.testing import Broker, RecordingClient, assert_enqueued, perform
from howdah.v1 import DependencyResult


class ShopTest(unittest.TestCase):
    def test_a_handler_runs_without_a_broker(self) -> None:
        self.assertEqual(perform(shop.reserve, 2), 6)
        self.assertEqual(perform(shop.reserve, 100, attempt=2), 300)
        with self.assertRaises(ConnectionError):
            perform(shop.reserve, 100, attempt=1)

    def test_the_last_job_adds_the_prices(self) -> None:
        prices = [DependencyResult(result=b"6"), DependencyResult(result=b"3")]
        self.assertEqual(perform(shop.confirm, "ann@example.com", after=prices), "ann@example.com pays 9")

    def test_an_order_is_enqueued(self) -> None:
        client = RecordingClient()
        shop.place(client, "ann@example.com", [2, 1])
        assert_enqueued(client, "item.reserve", 2, max_attempts=5)
        assert_enqueued(client, "order.confirm", "ann@example.com", after_local=["item 0", "item 1"])

    def test_an_order_runs(self) -> None:
        with Broker() as broker, howdah.Client(broker.address) as client:
            worker = howdah.Worker(client)
            worker.task("item.reserve")(shop.reserve)
            worker.task("order.confirm")(shop.confirm)
            with worker:
                (last,) = client.wait([shop.place(client, "ann@example.com", [2, 1])])
        self.assertEqual(howdah.decode(last.result), "ann@example.com pays 9")


if __name__ == "__main__":
    unittest.main()
