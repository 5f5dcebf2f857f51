"""What a checkpoint holds and what a run looked like, for people and for --json. Imported by cli and server only."""
