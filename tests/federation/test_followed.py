"""A running federation on the page: what the server reports is what is told, and it may come and go."""

import json
from pathlib import Path

import numpy as np
import pytest

from parties import SIZE, ended, plan, publish, run, server, update, wait_until
from qafel.dashboard import Federation
from qafel.federation import Broker

pytestmark = pytest.mark.slow


def test_the_page_tells_facts_clients_and_evaluations_of_a_federation_and_how_it_ended(
    broker: Broker, tmp_path: Path
) -> None:
    chosen = plan(uploads=13, checkpoint_seconds=0.2, evaluate_every=4)
    job = chosen.job(SIZE)
    followed = Federation(chosen.name, broker.url)
    wait_until(lambda: "no server" in followed.content().get("error", "") or "facts" in followed.content())
    serving = server(
        chosen, broker.url, tmp_path / "server", evaluate=lambda x: {"norm": float(np.linalg.norm(x))}
    )
    run(publish(broker.url, [(k, update(job, k, 0)) for k in range(12)] + [(40, b"noise")]))
    wait_until(lambda: dict(followed.content().get("facts", [])).get("uploads", "").startswith("12 of 13"))
    live = tmp_path / "server" / "live.json"
    wait_until(lambda: live.exists() and sum(json.loads(live.read_text())["staleness"].values()) >= 8)
    assert json.loads(live.read_text())["size"] == SIZE
    facts = dict(followed.content()["facts"])
    assert facts["version"] == "3"
    assert facts["buffer"] == "0 of 4"
    assert facts["rejected"] == "1 malformed"
    assert facts["leader's term"] == "1"
    assert facts["state"] == "running"
    assert followed.listed.state == "running"
    run(publish(broker.url, [(50, update(job, 50, 0))]))
    ended(serving)
    wait_until(lambda: followed.listed.state == "ended")
    assert dict(followed.content()["facts"])["state"] == "ended: uploads"
    points = followed.run()["points"]
    assert points["uploads"][-1] == 13 == followed.listed.uploads
    assert points["metrics"]["norm"][-1] == followed.listed.metrics["norm"] > 0
    assert followed.stamp == len(points["uploads"])
