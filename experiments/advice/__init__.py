"""How good the answers of scripts/advise.sh are."""
