"""What a policy is played against."""
