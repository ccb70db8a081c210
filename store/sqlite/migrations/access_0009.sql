-- When the subscription of an ended membership was found canceled, so that it cannot be paid again.
-- Until then the membership can become active again, and is compared with the processor every day.
ALTER TABLE memberships ADD COLUMN closed_at INTEGER;
