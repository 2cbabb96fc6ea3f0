"""What is made of collected rollouts: other forms of them, and what they say."""
