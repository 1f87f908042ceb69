"""ckptfs for Python."""
