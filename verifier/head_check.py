"""Checks the signed head of a log: its key, its tiles, its witnesses, and the head seen before."""

from dataclasses import dataclass

from verifier.checkpoints import Checkpoint
from verifier.client import ServiceClient
from verifier.errors import LogUnavailableError, MissingError, VerifyError
from verifier.notes import LOG_KEY, NoteError, VerifierKey
from verifier.policy import Policy
from verifier.report import Report
from verifier.tiles import TileTree, TreeMismatchError


@dataclass(frozen=True)
class TrustedKeys:
    """The key that was saved before, the one that the user gave, and the policy, if any."""

    saved: VerifierKey | None
    given: VerifierKey | None
    policy: Policy | None


async def choose_key(client: ServiceClient, keys: TrustedKeys, report: Report) -> VerifierKey:
    """Return the key that must have signed; at the first use the one that the service states.

    A served key that differs from it is a finding. VerifyError if there is no key, or if the policy
    lists other logs.
    """
    key = keys.given or keys.saved
    try:
        served = _parse_key(client, await client.read_key())
    except VerifyError as error:
        # The record can still be compared with the rows.
        if key is None:
            raise
        report.obstacles.append(str(error))
    else:
        if key is None:
            report.notes.append(f"the key of the log is trusted from now on: {served}")
        elif key != served:
            report.findings.append(
                f"the key of the log has changed: it was {key}, and the service states {served}"
            )
        key = key or served
    logs = keys.policy.logs if keys.policy else []
    if logs and key not in logs:
        raise VerifyError(f"the policy does not list the key of the log, {key}")
    return key


def _parse_key(client: ServiceClient, text: str) -> VerifierKey:
    try:
        return VerifierKey.parse(text, LOG_KEY)
    except NoteError as error:
        raise VerifyError(f"{client.address} stated a key that is none: {error}") from None


async def read_head(client: ServiceClient, report: Report) -> Checkpoint | None:
    """Return the served checkpoint, unverified; None and an obstacle if there is none."""
    try:
        return Checkpoint.parse(await client.read_checkpoint())
    except (LogUnavailableError, MissingError) as error:
        report.obstacles.append(str(error))
    except NoteError as error:
        report.obstacles.append(f"{client.address} sent a checkpoint that is none: {error}")
    return None


def check_signatures(
    checkpoint: Checkpoint, key: VerifierKey, policy: Policy | None, report: Report
) -> bool:
    """Check the signature of the log, and the quorum; return whether the log signed it."""
    if not checkpoint.is_signed_by(key):
        report.findings.append(
            f"the checkpoint of {checkpoint.origin} is not signed by the key of {key.name}"
        )
        return False
    if policy is not None:
        cosigners = policy.list_cosigners(checkpoint)
        report.checked["cosignatures"] += len(cosigners)
        if not policy.is_met_by(cosigners):
            names = ", ".join(cosigners) or "none"
            report.obstacles.append(
                f"the policy requires the quorum {policy.quorum}; cosigned by: {names}"
            )
    return True


async def check_tree(
    client: ServiceClient, checkpoint: Checkpoint, saved: Checkpoint | None, report: Report
) -> TileTree | None:
    """Check the tiles against the root, and the tree against the one seen before.

    Return the tree, None if it contradicts either of them.
    """
    tree = TileTree(checkpoint.size, checkpoint.root, client.fetch_tile)
    try:
        await tree.check_root()
        if saved is None:
            return tree
        if saved.size <= checkpoint.size:
            return tree if await _extends(tree, saved, report) else None
        await _check_shrunk(client, checkpoint, saved, report)
    except TreeMismatchError as error:
        report.findings.append(f"the log contradicts itself: {error}")
    return None


async def _extends(tree: TileTree, saved: Checkpoint, report: Report) -> bool:
    if await tree.compute_root(saved.size) == saved.root:
        report.checked["earlier checkpoint"] += 1
        return True
    report.findings.append(
        f"the log does not extend the one seen before: its first {saved.size} leaves have changed"
    )
    return False


async def _check_shrunk(
    client: ServiceClient, checkpoint: Checkpoint, saved: Checkpoint, report: Report
) -> None:
    """Add a finding if the log lost leaves, an obstacle if the checkpoint is only an old copy."""
    earlier = TileTree(saved.size, saved.root, client.fetch_tile)
    try:
        await earlier.check_root()
        is_copy = await earlier.compute_root(checkpoint.size) == checkpoint.root
    except (MissingError, TreeMismatchError):
        is_copy = False
    sizes = f"it had {saved.size} leaves, and now has {checkpoint.size}"
    if is_copy:
        report.obstacles.append(f"an old copy of the checkpoint was served: {sizes}; try again")
    else:
        report.findings.append(f"the log has shrunk: {sizes}")
