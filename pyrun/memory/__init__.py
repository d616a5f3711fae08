"""What left a conversation, and what should be remembered: archived messages, questions with answers, facts."""
