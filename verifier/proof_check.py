"""Checks the proof of a row without a network."""

from verifier.canonical import Row, hash_row
from verifier.head_check import check_signatures
from verifier.notes import VerifierKey
from verifier.policy import Policy
from verifier.proofs import InclusionProof
from verifier.report import Report


def check_proof(
    proof: InclusionProof, rows: list[Row], key: VerifierKey, policy: Policy | None
) -> Report:
    """Check that one of the rows is the leaf of a proof, and that the log signed its tree."""
    report = Report(evidence=[("the checkpoint of the proof", proof.checkpoint.source)])
    check_signatures(proof.checkpoint, key, policy, report)
    proven = [row for row in rows if proof.includes(hash_row(row, proof.salt))]
    report.checked["rows in the log"] += len(proven)
    report.notes += (f"{row['id']} is leaf {proof.index} of {key.name}" for row in proven)
    if not proven:
        report.findings.append(f"leaf {proof.index} of the proof is none of the given rows")
    return report
