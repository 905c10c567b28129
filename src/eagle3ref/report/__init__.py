"""What people and programs are shown: rich renderables, and the JSON document of a replay."""
