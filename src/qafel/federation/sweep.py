"""Orphaned pieces: of uploads that were never announced, of checkpoints and snapshots killed half-way."""

from collections import Counter

import msgspec

from qafel.federation.nats import Connection


class Sweeper:
    """Removes what nobody needs and nothing was added to since the last time."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._suspects: dict[str, int] = {}

    async def sweep(self, needed: set[str]) -> list[str]:
        """Look at all pieces but those of objects that are ``needed``, by digest; what was removed."""
        names, roots = self._link.names, Counter[str]()
        for where in (names.chunk(), names.public("object.>"), names.private("object.>")):
            request = msgspec.json.encode({"subjects_filter": where})
            found = await self._link.call(f"$JS.API.STREAM.INFO.{names.objects}", request)
            roots.update(subject.rsplit(".", 1)[0] for subject in found["state"].get("subjects") or {})
        doubtful = {root: n for root, n in roots.items() if root.rsplit(".", 1)[1] not in needed}
        gone = [root for root, pieces in doubtful.items() if self._suspects.get(root) == pieces]
        for root in gone:
            await self._link.purge(names.objects, subject=f"{root}.*")
        self._suspects = doubtful
        return gone
